"""Scores of tokens by every method, against transformers' eager weights, finite differences and its own masks."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.projections import projections
from attnscope.explanation.study import Study
from attnscope.read.windows import Window
from attnscope_lineage.weights import tokens as _tokens
from attnscope_lineage.weights.arrays import attention_flow
from attnscope_lineage.weights.tokens import TOKEN_ESTIMATORS, token_contributions
from tests.explanation.captured_inputs import capture_inputs
from tests.intervention.eager_gradients import TARGET, TEXT, given_to, weights_and_gradients
from tests.packages.lineage.weights.test_profiles import joint
from tests.tiny_models import tiny

QUERIES = [1, 4, 6]
MARKS = {"special": (), "spans": (), "source": "a", "start": 0, "shown": ()}


def given(model):
    window = Window(tuple(TEXT), **MARKS)
    if model.config.is_encoder_decoder:
        window = Window(tuple(TEXT), target=Window(tuple(TARGET), **MARKS), **MARKS)
    return Study(model, [window], name="tiny")


@pytest.fixture(scope="module", params=["bert", "gpt2", "bart"])
def scored(request):
    model = tiny(request.param).double()
    found = token_contributions(given(model), positions=QUERIES)
    return model, found, weights_and_gradients(model)


def sizes_of(model):
    return len(TEXT), len(TARGET) if model.config.is_encoder_decoder else 0


def test_all_methods_are_there(scored):
    model, found, _ = scored
    assert found.estimator.values.tolist() == list(TOKEN_ESTIMATORS)
    assert found.attrs["skipped"] == ""
    assert found.position.values.tolist() == QUERIES
    source, target = sizes_of(model)
    assert found.side.values.tolist() == ["source"] * source + ["target"] * target
    assert np.isfinite(found.score).all()


def test_of_the_weights(scored):
    model, found, layers = scored
    source, target = sizes_of(model)
    start = source if target else 0
    own = [weights for kind, weights, _ in layers if kind != "cross"][-1].mean(0)[QUERIES]
    expected = own
    if target:
        expected = np.hstack([layers[-1][1].mean(0)[QUERIES], own])
    np.testing.assert_allclose(found.score.sel(estimator="weights"), expected, atol=1e-9)
    matrices = np.stack([joint(kind, weights.mean(0), (source, target), 1)[0] for kind, weights, _ in layers])
    rows = [start + query for query in QUERIES]
    rolled = np.linalg.multi_dot([*(0.5 * np.eye(source + target) + 0.5 * matrices[::-1])])
    np.testing.assert_allclose(found.score.sel(estimator="rollout"), rolled[rows], atol=1e-9)
    flows = attention_flow(matrices, rows[:1])
    np.testing.assert_allclose(found.score.sel(estimator="flow")[:1], flows, atol=1e-9)
    if not target:
        every = np.mean([weights.mean(0) for _, weights, _ in layers], 0)[QUERIES]
        np.testing.assert_allclose(found.score.sel(estimator="weights_mean"), every, atol=1e-9)


def test_of_norms(scored):
    model, found, layers = scored
    matrices = list(projections(model, given_to(model)).values())[-1]
    keys = list(capture_inputs(model, given_to(model), key_side=True).values())[-1]
    values = keys @ matrices.value + matrices.value_bias[:, None]
    given_by_all = np.einsum("hqk,hkr,hrw->qkw", layers[-1][1], values, matrices.output)
    expected = np.linalg.norm(given_by_all, axis=-1)[QUERIES]
    np.testing.assert_allclose(found.score.sel(estimator="norms")[:, : expected.shape[1]], expected, atol=1e-9)


def test_relevance_is_that_of_each_predictions_own_gradient(scored):
    model, found, _ = scored
    sizes = sizes_of(model)
    start = sizes[0] if sizes[1] else 0
    for number, query in enumerate(QUERIES):
        layers = weights_and_gradients(model, lambda logits, query=query: logits[0, query].log_softmax(-1).max())
        relevance = np.eye(sum(sizes))
        for kind, weights, slopes in layers:
            kept = joint(kind, np.maximum(weights * slopes, 0).mean(0), sizes, 0)[0]
            relevance = relevance + kept @ relevance
        expected = (relevance - np.eye(sum(sizes)))[start + query]
        np.testing.assert_allclose(found.score.sel(estimator="gradient_attention")[number], expected, atol=1e-9)


def test_gradients_by_finite_differences(scored):
    """The vector of one source token is moved, column by column."""
    model, found, _ = scored
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    token, query = 3, 4
    outcome = int(found.outcome.sel(position=query))
    step, vectors, slope = torch.zeros(32, dtype=torch.float64), [], torch.zeros(32, dtype=torch.float64)

    def move(_, ids, vector):
        vectors.append(vector[0, token].clone())
        moved = vector.clone()
        moved[0, token] += step
        return moved

    handle = reader.get_input_embeddings().register_forward_hook(move)
    try:
        for column in range(32):
            both = []
            for size in (1e-5, -1e-5):
                step.zero_()[column] = size
                with torch.no_grad():
                    both.append(float(model(**given_to(model)).logits[0, query].log_softmax(-1)[outcome]))
            slope[column] = (both[0] - both[1]) / 2e-5
    finally:
        handle.remove()
    here = found.score.sel(position=query, token=token)
    assert float(here.sel(estimator="gradient")) == pytest.approx(float(slope.norm()), rel=1e-6)
    assert float(here.sel(estimator="gradient_input")) == pytest.approx(abs(float(slope @ vectors[0])), rel=1e-5)


def test_leaving_a_token_out_is_hiding_it_by_the_models_own_mask(scored):
    model, found, _ = scored
    source, target = sizes_of(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        whole = model(**given_to(model)).logits[0, QUERIES].softmax(-1)
        for token in range(1, source + target):  # behind a causal mask the first row may look nowhere without it
            side, at = ("", token) if token < source else ("decoder_", token - source)
            if side and at == 0:
                continue
            mask = torch.ones(1, target if side else source, dtype=torch.long)
            mask[0, at] = 0
            options = {f"{side}attention_mask": mask}
            hidden = model(**given_to(model), **options).logits[0, QUERIES].softmax(-1)
            expected = (hidden - whole).abs().sum(-1) / 2
            here = found.score.sel(estimator="leave_one_out", token=token)
            np.testing.assert_allclose(here, expected, atol=1e-9)


def test_a_model_without_a_head_has_all_methods_but_those_of_predictions():
    found = token_contributions(given(tiny("bert").bert), positions=[2])
    left = ["gradient_attention", "gradient", "gradient_input", "leave_one_out"]
    assert [one for one in TOKEN_ESTIMATORS if one not in found.estimator.values] == left
    assert "BertModel returns hidden states" in found.attrs["skipped"]
    assert "outcome" not in found
    with pytest.raises(AttnscopeError, match="gradient is not defined here: BertModel returns hidden states"):
        token_contributions(given(tiny("bert").bert), estimators=["gradient"])


def test_bad_input_is_rejected(monkeypatch):
    monkeypatch.setattr(_tokens, "FLOW_TOKENS", 8)
    one = given(tiny("bert"))
    with pytest.raises(AttnscopeError, match="there is no position 12: positions go from 0 to 11"):
        token_contributions(one, positions=[12])
    with pytest.raises(AttnscopeError, match="found no positions"):
        token_contributions(one, positions=[])
    with pytest.raises(AttnscopeError, match="there is no estimator 'norm': choose from weights, weights_mean, norms"):
        token_contributions(one, estimators=["norm"])
    with pytest.raises(AttnscopeError, match=r"found outcomes \[99\] for 1 positions; expected one for each"):
        token_contributions(one, positions=[1], outcomes=[99], estimators=["gradient"])
    long = Study(tiny("gpt2"), [(5,) * 63], name="tiny")
    with pytest.raises(
        AttnscopeError, match="flow is not defined here: the text has 63 tokens, and flow takes at most 8"
    ):
        token_contributions(long, estimators=["flow"])
