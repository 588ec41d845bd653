"""Predictions with another output in the place of one head's, against hooks on the model's own modules."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.projections import projections
from attnscope.read.windows import Window
from attnscope_lineage.weights.arrays import jensen_shannon as arrays_jensen_shannon
from attnscope_lineage.weights.arrays import total_variation as arrays_total_variation
from attnscope_lineage.weights.tests import ReadText
from attnscope_lineage.weights.tests import prediction_distance as total_variation
from attnscope_lineage.weights.tests import prediction_divergence as jensen_shannon
from tests.intervention.eager_gradients import TARGET, TEXT, given_to, weights_and_gradients
from tests.tiny_models import tiny

MARKS = {"spans": (), "source": "a", "start": 0, "shown": ()}
#: Layers by their calls; of BART the encoder's second, and the decoder's first self- and cross-attention.
PLACES = {"bert": [0, 1], "gpt2": [0, 1], "llama": [1], "bart": [1, 2, 3]}


def read(model, mask_id=None):
    window = Window(tuple(TEXT), special=(), **MARKS)
    if model.config.is_encoder_decoder:
        window = Window(tuple(TEXT), special=(), target=Window(tuple(TARGET), special=(), **MARKS), **MARKS)
    return ReadText(model, window, 0, mask_id)


@pytest.mark.parametrize(("family", "layer"), [(name, layer) for name, layers in PLACES.items() for layer in layers])
def test_other_outputs_are_put_where_the_projection_reads_them(family, layer):
    model = tiny(family).double()
    text = read(model)
    head, generator = 2, torch.Generator().manual_seed(0)
    own = text.head(layer, head).output
    outputs = torch.stack([own, torch.randn(own.shape, generator=generator, dtype=own.dtype)])
    found = text.head(layer, head).changed(outputs)
    np.testing.assert_allclose(found[0], text.log_probabilities, atol=1e-9)
    with torch.no_grad():
        plain = model(**given_to(model)).logits[0].log_softmax(-1)
    np.testing.assert_allclose(text.log_probabilities, plain, atol=1e-6 if family == "llama" else 1e-9)
    names = list(projections(model, given_to(model)).values())[layer].names
    columns = slice(head * own.shape[1], (head + 1) * own.shape[1])

    def put(_, arguments):
        read = arguments[0].clone()
        read[..., columns] = outputs[1]
        return (read, *arguments[1:])

    handle = model.get_submodule(names["output"]).register_forward_pre_hook(put)
    with torch.no_grad():
        expected = model(**given_to(model)).logits[0].log_softmax(-1)
    handle.remove()
    np.testing.assert_allclose(found[1], expected, atol=1e-6 if family == "llama" else 1e-9)
    assert float((expected - plain).abs().max()) > 1e-3


@pytest.mark.parametrize("family", ["bert", "gpt2", "bart"])
def test_gradients_by_weights_are_those_of_eager_attention(family):
    model = tiny(family).double()
    text = read(model)
    expected = weights_and_gradients(model)
    for layer in PLACES[family]:
        np.testing.assert_allclose(text.head(layer, 1).weights, expected[layer][1][1], atol=1e-9)
        np.testing.assert_allclose(text.head(layer, 1).by_weights(), expected[layer][2][1], atol=1e-9)


def test_a_masked_language_model_predicts_behind_masks():
    model = tiny("bert")
    text = read(model, mask_id=4)
    assert len(text.positions) == round(0.15 * len(TEXT))
    ids = torch.tensor([TEXT])
    ids[0, text.positions] = 4
    assert torch.equal(text.inputs["input_ids"], ids)
    special = Window(tuple(TEXT), special=tuple([True] * 10 + [False] * 2), **MARKS)
    assert set(ReadText(model, special, 3, 4).positions.tolist()) <= {10, 11}
    with pytest.raises(AttnscopeError, match=r"window 1 \(a from character 0\) has only special tokens"):
        ReadText(model, Window(tuple(TEXT), special=(True,) * 12, **MARKS), 0, 4)
    assert len(read(tiny("gpt2"), mask_id=4).positions) == len(TEXT)  # it looks back, so nothing is hidden


def test_effects_are_the_distances_of_arrays():
    text = read(tiny("bert").double())
    outputs = torch.randn(
        2, *text.head(0, 0).output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    after, before = text.head(0, 0).changed(outputs).exp().numpy(), text.log_probabilities.exp().numpy()
    found = text.head(0, 0).effects(outputs)
    np.testing.assert_allclose(found["tvd"], arrays_total_variation(after, before[None] + 0 * after), atol=1e-9)
    np.testing.assert_allclose(found["jsd"], arrays_jensen_shannon(after, before[None] + 0 * after), atol=1e-9)
    np.testing.assert_array_equal(found["flipped"], after.argmax(-1) != before.argmax(-1))


def test_the_divergence_has_a_slope_where_a_mask_hides_a_key():
    own = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[0.3, -0.2, -torch.inf]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(jensen_shannon(logits.softmax(-1), own).sum(), logits)
    step = torch.tensor([[1e-6, 0, 0]], dtype=torch.float64)
    with torch.no_grad():
        both = [float(jensen_shannon((logits + sign * step).softmax(-1), own)) for sign in (1, -1)]
    assert float(slope[0, 0]) == pytest.approx((both[0] - both[1]) / 2e-6, rel=1e-5)
    assert bool(slope.isfinite().all())
    assert float(total_variation(own.log(), own.log())) == 0
