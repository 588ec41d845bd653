"""What a planted head adds to its scores, and that an architecture computes what was planned."""

import numpy as np
import pytest
import torch

from attnscope.capture.watching import watching
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.positions import rotation
from attnscope_zoo.architectures import model_of, weights_of
from attnscope_zoo.circuits import cancel, induction
from attnscope_zoo.heads import CONSTANT, Rotary, ScoreRule, Shift, Space, Waves
from attnscope_zoo.zoo import HEAD_WIDTH, Setting, fill

# --- what a head adds to its scores at each offset, against sums of cosines and of turned vectors ---


LENGTH, WIDTH = 20, 48
SPACE = Space(60, token=20, position=16)


def at(offset, **how):
    nothing = np.zeros((0, SPACE.width))
    return ScoreRule(nothing, nothing, (Shift(offset, **how),))


def scores_of(positions, rule):
    rng = np.random.default_rng(1)
    query, key = positions.projections(rule, SPACE, WIDTH, rng)
    table = positions.table(SPACE)
    states = CONSTANT * SPACE.rows("constant") + (np.zeros((LENGTH, 1)) if table is None else table)
    queries, keys = states @ query, states @ key
    if table is None:  # as Llama turns them
        import torch

        turn = rotation(LENGTH, WIDTH)
        queries, keys = (turn(torch.from_numpy(one)).numpy() for one in (queries, keys))
    return queries @ keys.T


@pytest.mark.parametrize("positions", [Waves(LENGTH, np.random.default_rng(0)), Rotary(LENGTH, WIDTH)])
@pytest.mark.parametrize("offset", [-3, 0, 2])
def test_scores_are_the_kernel_moved_to_the_offset(positions, offset):
    rule = at(offset)
    i, j = np.indices((LENGTH, LENGTH))
    expected = positions.nats(rule.shifts[0]) * positions.kernel((j - i - offset).astype(float))
    assert np.allclose(scores_of(positions, rule), expected)


@pytest.mark.parametrize("positions", [Waves(LENGTH, np.random.default_rng(0)), Rotary(LENGTH, WIDTH)])
def test_the_gap_is_what_was_requested(positions):
    scores = scores_of(positions, at(-2, gap=7.0))
    row = scores[10, :11]  # what a query in the middle sees of the past
    assert row.argmax() == 8
    assert np.sort(row)[-1] - np.sort(row)[-2] >= 7.0 - 1e-9


# --- an architecture computes what was planned: its norms and feed-forward parts change next to nothing ---


def planned(draft, ids):
    """Logits and weights (call: text, head, query, key) of the draft alone, in float64: attention and sums, no more."""
    states = draft.tokens[ids] + draft.positions.table(draft.space)
    causal = draft.setting.form == "decoder"
    hidden = np.triu(np.full((ids.shape[1],) * 2, -np.inf), 1) if causal else 0.0
    weights = []
    for call in draft.calls:
        made, found = np.zeros_like(states), []
        for head in call:
            query, key = draft.positions.projections(head.rule, draft.space, HEAD_WIDTH, np.random.default_rng(0))
            scores = states @ query @ (states @ key).swapaxes(1, 2) + hidden
            share = np.exp(scores - scores.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            made += share @ (states @ head.move.reads.T) @ head.move.writes
            found.append(share)
        states = states + made
        weights.append(np.stack(found, 1))
    return states @ draft.unembed.T, weights


@pytest.mark.parametrize("kind", [induction, cancel])
@pytest.mark.parametrize(("form", "architecture"), [("decoder", "gpt2"), ("encoder", "pre-norm"), ("encoder", "bert")])
def test_the_model_does_what_was_planned(kind, form, architecture):
    draft, task = kind(Setting(form, architecture, 0.0, seed=3))
    fill(draft)
    model = model_of(draft, weights_of(draft, np.random.default_rng(0)))
    expected, shares = planned(draft, task.ids[:4])
    seen = []

    def rule(_, call):
        output, weights = attend_in_full(call)
        seen.append(weights)
        return output

    with torch.no_grad(), watching(model, rule):
        logits = model(torch.from_numpy(task.ids[:4])).logits.double().numpy()
    queried = task.labels[:4] != -100
    for found, share, call in zip(seen, shares, draft.calls, strict=True):
        planted = [number for number, head in enumerate(call) if head.matters]
        assert (np.abs(found.numpy() - share)[:, planted] < 0.1).all()
    # norms multiply by 1 / sqrt(1 + (what is said) / 60^2), which is 1 but for some hundredths
    assert np.abs(logits - expected)[queried].max() < 0.08 * np.abs(expected[queried]).max()
