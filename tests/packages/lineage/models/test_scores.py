"""Score functions against their formulas, written out pair by pair, and the contexts that they give."""

import math

import pytest
import torch
from torch.testing import assert_close

from attnscope import AttnscopeError
from attnscope_lineage.models.scores import AdditiveScore, BilinearScore, DotScore, look, scaled_dot_score

S, H = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
SCORES = {
    "dot": DotScore(6, 6),
    "scaled": scaled_dot_score(6, 6),
    "bilinear": BilinearScore(6, 6),
    "additive": AdditiveScore(6, 6, width=4),
}


def one_pair(name, score, s, h):
    """The formula for one state and one annotation."""
    if name == "dot":
        return sum(a * b for a, b in zip(s, h, strict=True))
    if name == "scaled":
        return sum(a * b for a, b in zip(s, h, strict=True)) / math.sqrt(len(s))
    if name == "bilinear":
        return s @ score.weight.weight @ h
    hidden = score.query.weight @ s + score.query.bias + score.key.weight @ h
    return sum(v * math.tanh(x) for v, x in zip(score.direction.weight[0], hidden, strict=True))


@pytest.mark.parametrize("name", SCORES)
@torch.no_grad()
def test_scores_are_their_formula(name):
    score = SCORES[name]
    found = score(S, H)
    by_hand = [[[one_pair(name, score, s, h) for h in H[b]] for s in S[b]] for b in range(2)]
    assert_close(found, torch.tensor(by_hand), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_a_context_mixes_what_is_not_padding(name):
    valid = torch.tensor([[True] * 5, [True, True, False, False, False]])
    score = SCORES[name]
    context, weights = look(score, S, score.prepare(H), H, valid)
    assert_close(weights.sum(-1), torch.ones(2, 3))
    assert weights[1, :, 2:].abs().max() == 0
    alone, _ = look(score, S[1:], score.prepare(H[1:, :2]), H[1:, :2])
    assert_close(context[1:], alone)
    assert_close(context[0], weights[0] @ H[0])


def test_nothing_but_padding_gives_nothing_and_finite_gradients():
    score = AdditiveScore(6, 6, width=4)
    states = S.clone().requires_grad_()
    context, weights = look(score, states, score.prepare(H), H, torch.zeros(2, 5, dtype=torch.bool))
    assert weights.abs().max() == 0
    context.sum().backward()
    assert states.grad.isfinite().all()


def test_unequal_widths_cannot_be_compared_by_a_dot_product():
    with pytest.raises(AttnscopeError, match="found 6 and 8: make them equal, or choose 'bilinear'"):
        DotScore(6, 8)
    with pytest.raises(AttnscopeError, match="found query_width=0; expected 1 or more"):
        DotScore(0, 6)


def test_states_and_annotations_of_another_width_are_rejected():
    score = SCORES["additive"]
    with pytest.raises(AttnscopeError, match="keys are 5 wide; expected 6"):
        score(S, H[..., :5])
    with pytest.raises(AttnscopeError, match="states are 5 wide; expected 6"):
        look(score, S[..., :5], score.prepare(H), H)
