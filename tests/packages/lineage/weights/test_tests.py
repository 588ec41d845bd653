"""Tests of weights, on models in which it is known what a head's weights can do."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.study import Study
from attnscope.intervention.arrays import permuted_weights
from attnscope.read.windows import Window
from attnscope_lineage.weights import calls as _limits
from attnscope_lineage.weights.arrays import adversarial_weights, erased_weights, total_variation
from attnscope_lineage.weights.tests import (
    ReadText,
    adversarial_test,
    erasure_test,
    frozen_test,
    permutation_test,
    same_output_test,
    uniform_test,
)
from tests.intervention.eager_gradients import TEXT
from tests.packages.lineage.models.small_lineage import small
from tests.tiny_models import tiny

MARKS = {"special": (), "spans": (), "start": 0, "shown": ()}
OTHER = [8, 22, 31, 5, 50, 18, 29, 13, 41, 10, 34, 6, 17]


def given(model, *texts, target=None):
    """Each text is a document of its own."""
    targets = None if target is None else Window(tuple(target), source="t", **MARKS)
    windows = [
        Window(tuple(text), source=f"text {number}", target=targets, **MARKS)
        for number, text in enumerate(texts or (TEXT,))
    ]
    return Study(model, windows, name="tiny")


def planted():
    """A BERT of two layers: in layer 0, head 0 has equal values, and head 1 is not heard."""
    model = tiny("bert")
    layer = model.bert.encoder.layer[0].attention
    with torch.no_grad():
        layer.self.value.weight[:8] = 0
        layer.output.dense.weight[:, 8:16] = 0
    return model


def of(found, name, layer, head):
    return found[name].isel(window=0).sel(layer=layer, head=head).values


TESTS = {
    "permutation": lambda one, **options: permutation_test(one, draws=5, **options),
    "uniform": lambda one, **options: uniform_test(one, draws=3, **options),
    "adversarial": lambda one, **options: adversarial_test(one, steps=12, draws=2, **options),
    "erasure": lambda one, **options: erasure_test(one, fractions=[0.5, 1.0], draws=2, **options),
}


@pytest.mark.parametrize("name", TESTS)
def test_i19_where_values_are_equal_or_not_heard_weights_do_nothing(name):
    found = TESTS[name](given(planted()), heads=[(0, 0), (0, 1), (0, 2)])
    for head in (0, 1):
        moved = of(found, "tvd", 0, head)
        if name == "erasure" and head == 0:  # equal values are noticed when all are gone
            moved = moved[:, :1]
        assert np.max(moved) < 1e-5
    if name in {"permutation", "uniform"}:
        assert of(found, "weights_tvd", 0, 0) > 0.1
        assert of(found, "tvd", 0, 2) > 1e-3
        assert of(found, "flipped", 0, 0) == 0
    assert np.isnan(of(found, "tvd", 1, 0)).all()  # it was not chosen
    assert np.isnan(of(found, "tvd", 0, 3)).all()


def test_uniform_weights_replace_those_of_the_head():
    model = tiny("bert")
    found = uniform_test(given(model), heads=[(1, 2)], draws=2)
    text = ReadText(model, given(model).windows[0], 0)
    equal = np.full((12, 12), 1 / 12)
    expected = text.head(1, 2).effects(text.head(1, 2).of_weights(equal[None]))
    for name in ("tvd", "jsd", "flipped"):
        assert of(found, name, 1, 2) == pytest.approx(expected[name].mean())
    moved = total_variation(text.head(1, 2).weights, equal).mean()
    assert of(found, "weights_tvd", 1, 2) == pytest.approx(moved)


def test_permutations_are_the_median_of_single_ones():
    model = tiny("gpt2")
    found = permutation_test(given(model), heads=[(0, 1)], draws=7, seed=3)
    text = ReadText(model, given(model).windows[0], 0)
    weights, generator = text.head(0, 1).weights, np.random.default_rng((3, 0, 0, 1))
    causal = np.tril(np.ones((12, 12), dtype=bool))
    several = np.stack([permuted_weights(weights, generator, causal) for _ in range(7)])
    moved = text.head(0, 1).effects(text.head(0, 1).of_weights(several))["tvd"].mean(1)
    assert of(found, "tvd", 0, 1) == pytest.approx(np.median(moved))
    assert of(found, "max_weight", 0, 1) == pytest.approx(weights.max(1).mean())
    assert of(found, "tvd_null", 0, 1) > 0
    again = permutation_test(given(model), draws=7, seed=3)  # a head's numbers do not depend on which others are tested
    assert of(again, "tvd", 0, 1) == of(found, "tvd", 0, 1)


def test_frozen_weights_come_from_a_text_that_is_long_enough():
    model = tiny("bert")
    found = frozen_test(given(model, TEXT, OTHER), heads=[(1, 0)], draws=2)
    assert np.isfinite(found.tvd.sel(layer=1, head=0)).values.tolist() == [True, False]
    texts = [ReadText(model, one, 0) for one in given(model, TEXT, OTHER).windows]
    cut = texts[1].head(1, 0).weights[:12, :12]
    cut /= cut.sum(1, keepdims=True)
    expected = texts[0].head(1, 0).effects(texts[0].head(1, 0).of_weights(cut[None]))
    assert of(found, "tvd", 1, 0) == pytest.approx(expected["tvd"].mean())
    same = Study(model, [given(model).windows[0]] * 2, name="tiny")
    assert np.isnan(frozen_test(same, heads=[(1, 0)], draws=1).tvd).all()  # no other document


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_search_goes_far_and_keeps_its_bound(family):
    model = tiny(family)
    found = adversarial_test(given(model), heads=[(1, 1)], bound=0.05, steps=25, draws=2)
    reached, far, null = (float(of(found, name, 1, 1)) for name in ("tvd", "weights_jsd", "weights_jsd_null"))
    assert 0 < reached <= 0.05
    assert null < far <= np.log(2)
    tight = adversarial_test(given(model), heads=[(1, 1)], bound=0.0, steps=5, draws=1)
    assert float(of(tight, "tvd", 1, 1)) == 0


def test_erasure_follows_each_order():
    model = tiny("gpt2")
    found = erasure_test(given(model), heads=[(1, 3)], fractions=[0.25, 0.5, 1.0], draws=2).isel(window=0)
    here = found.sel(layer=1, head=3)
    text = ReadText(model, given(model).windows[0], 0)
    weights, slope = text.head(1, 3).weights, text.head(1, 3).by_weights()
    causal = np.tril(np.ones((12, 12), dtype=bool))
    for order, by in {"attention": weights, "gradient": slope, "product": weights * slope}.items():
        several = np.stack([erased_weights(weights, by, one, causal) for one in (0.25, 0.5, 1.0)])
        effects = text.head(1, 3).effects(text.head(1, 3).of_weights(several))
        np.testing.assert_allclose(here.tvd.sel(order=order), effects["tvd"].mean(1), atol=1e-6)
        flips = np.maximum.accumulate(effects["flipped"], 0)
        np.testing.assert_allclose(here.flipped.sel(order=order), flips.mean(1))
        at = np.array([0.25, 0.5, 1.0])[flips[:, flips.any(0)].argmax(0)]
        np.testing.assert_allclose(here.fraction_to_flip.sel(order=order), at.mean() if len(at) else np.nan)
    everything = here.tvd.sel(fraction=1.0)
    np.testing.assert_allclose(everything, everything[0], atol=1e-6)
    nothing = text.head(1, 3).effects(torch.zeros_like(text.head(1, 3).output)[None])["tvd"].mean()
    assert float(everything[0]) == pytest.approx(nothing, abs=1e-6)


def test_models_of_two_texts():
    one = given(small("sinusoidal-pre"), [3, 4, 5, 6, 7, 2], target=[1, 9, 8, 7])
    heads = [(0, 0), (2, 0), (3, 1)]  # encoder, decoder, across
    for test in TESTS.values():
        found = test(one, heads=heads)
        assert all(np.isfinite(of(found, "tvd", *head)).all() for head in heads)


def test_other_weights_with_the_same_output_are_those_of_the_linear_program():
    model = tiny("gpt2").double()
    found = same_output_test(given(model.transformer), heads=[(1, 2)], rows=3)  # no head that predicts is needed
    text = ReadText(model, given(model).windows[0], 0)
    rows = [0, 6, 11]  # evenly: 5.5 is rounded to 6
    causal = np.tril(np.ones((12, 12), dtype=bool))
    expected = adversarial_weights(text.head(1, 2).weights[rows], text.head(1, 2).values.numpy(), allowed=causal[rows])
    assert of(found, "weights_tvd", 1, 2) == pytest.approx(float(expected.tvd.mean()))
    assert of(found, "free", 1, 2) == float(expected.is_free.mean()) == 1 / 3  # width 8: 9 keys determine their weights
    assert of(found, "output_error", 1, 2) < 1e-9


def test_a_search_through_a_long_text_says_what_it_would_take(monkeypatch):
    monkeypatch.setattr(_limits, "MATRIX_BYTES", 1000)
    with pytest.raises(AttnscopeError, match="more than 0 GiB in a backward pass"):
        adversarial_test(given(tiny("bert")), heads=[(0, 0)], steps=1, draws=1)


def test_bad_input_raises():
    one = given(tiny("bert"))
    with pytest.raises(AttnscopeError, match=r"there is no head 2.0 .*layers go from 0 to 1, heads from 0 to 3"):
        uniform_test(one, heads=[(2, 0)])
    with pytest.raises(AttnscopeError, match="found no heads"):
        uniform_test(one, heads=[])
    with pytest.raises(
        AttnscopeError, match="permutation_test compares predictions, and BertModel returns hidden states"
    ):
        permutation_test(given(tiny("bert").bert))
    with pytest.raises(AttnscopeError, match="expected increasing numbers"):
        erasure_test(one, fractions=[0.5, 0.2])
    with pytest.raises(AttnscopeError, match=r"bound is 2"):
        adversarial_test(one, bound=2.0)
