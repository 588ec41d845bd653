"""Matrices that one has already are measured as a scan measures the model that gave them."""

import numpy as np
import pytest
import torch
import xarray as xr

from attnscope import measure_weights
from attnscope.capture.borrow import LoadedModel
from attnscope.measure.quantities import STATISTICS
from attnscope.measure.texts import statistics_of
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError
from tests.kernels.statistics_of_weights import from_weights
from tests.tiny_models import tiny


class Tokenizer:
    pad_token_id = eos_token_id = 0


def window(length, seed):
    ids = np.random.default_rng(seed).integers(1, 50, length)
    special = (True, *[False] * (length - 2), True)
    return Window(tuple(ids.tolist()), special, ((0, 0),) * length, "text", 0, ("x",) * length)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@torch.no_grad()
def test_equal_to_a_scan_of_the_model(kind):
    model = tiny(kind).base_model.double()
    windows = [window(30, 0), window(17, 1)]
    expected = statistics_of(LoadedModel(model, Tokenizer(), "tiny", {}), windows)
    ids = torch.zeros(2, 30, dtype=torch.int64)
    real = torch.zeros(2, 30, dtype=torch.int64)
    for row, one in enumerate(windows):
        ids[row, : len(one)], real[row, : len(one)] = torch.tensor(one.ids), 1
    model.set_attn_implementation("eager")
    weights = model(input_ids=ids, attention_mask=real, output_attentions=True).attentions
    found = measure_weights(weights, lengths=[30, 17], special=[one.special for one in windows])
    assert set(expected.data_vars) == set(found.data_vars)
    assert found.layer_kind.values.tolist() == expected.layer_kind.values.tolist()
    for name in expected.data_vars:
        np.testing.assert_allclose(
            found[name].values.astype(float), expected[name].values.astype(float), rtol=1e-6, atol=1e-6, err_msg=name
        )
    assert found.labels == expected.labels


@pytest.fixture(scope="module")
def writer():
    model = tiny("gpt2").double()
    model.generation_config.eos_token_id = None
    model.set_attn_implementation("eager")
    return model


IDS = torch.tensor([[0, 0, 5, 6, 7, 8, 9, 10], [4, 5, 6, 7, 8, 9, 10, 11]])
ALL = list(STATISTICS)


def alone(model, ids, **options):
    return measure_weights(model(ids[None], output_attentions=True).attentions, statistics=ALL, band=3, **options)


@torch.no_grad()
def test_a_text_padded_on_the_left_is_measured_by_its_mask_as_it_is_alone(writer):
    mask = (IDS > 0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = writer(IDS, attention_mask=mask, position_ids=positions, output_attentions=True).attentions
    found = measure_weights(padded, mask=mask, statistics=["entropy", "profile", "first_token"], band=3)
    assert found.layer_kind.values.tolist() == ["causal", "causal"]
    assert found.length.values.tolist() == [6, 8]
    for text, ids in enumerate((IDS[0, 2:], IDS[1])):
        expected = alone(writer, ids)
        for name in ("entropy", "profile", "first_token"):
            np.testing.assert_allclose(found[name][text], expected[name][0], atol=1e-7, err_msg=name)
    with pytest.raises(AttnscopeError, match="text 1: its first 2 tokens get no weight"):
        measure_weights(padded)


@pytest.mark.parametrize(("ids", "cache"), [(IDS[1:], "dynamic"), (IDS[1:], "static"), (IDS, "dynamic")])
def test_steps_of_generate_are_one_pass_over_the_whole_text(writer, ids, cache):
    """The mask of padded prompts goes on over the generated tokens."""
    mask = (ids > 0).long()
    options = {"do_sample": False, "output_attentions": True, "return_dict_in_generate": True}
    options |= {"attention_mask": mask, "max_new_tokens": 5, "pad_token_id": 0, "cache_implementation": cache}
    made = writer.generate(ids, **options)
    names = ALL if mask.all() else ["profile"]
    found = measure_weights(made.attentions, statistics=names, band=3, mask=None if mask.all() else mask)
    for text, start in enumerate((1 - mask).sum(-1).tolist()):
        with torch.no_grad():
            expected = alone(writer, made.sequences[text, start:-1])
        for name in expected.data_vars if mask.all() else names:
            own, other = (one[name].values.astype(float) for one in (found, expected))
            np.testing.assert_allclose(own[text], other[0], rtol=1e-6, atol=1e-7, err_msg=name)


def test_fewer_queries_than_keys_are_the_last_tokens(writer):
    with torch.no_grad():
        whole = writer(IDS[1:], output_attentions=True).attentions

    def mean_offset(rows):
        return [
            np.mean([(layer[0, :, row].numpy() * (np.arange(8) - row)).sum(-1) for row in rows], 0) for layer in whole
        ]

    step = [layer[:, :, -1:] for layer in whole]
    found = measure_weights(step, statistics=["mean_offset", "profile"], band=3)
    np.testing.assert_allclose(found.mean_offset[0], mean_offset([7]))
    assert found.layer_kind.values.tolist() == ["causal", "causal"]
    across = measure_weights(step, statistics="mean_offset", band=3, causal=False)
    assert across.layer_kind.values.tolist() == ["cross", "cross"]
    np.testing.assert_allclose(across.mean_offset[0], np.add(mean_offset([7]), 7))
    chunk = measure_weights([layer[:, :, 5:] for layer in whole], statistics="mean_offset", causal=True)
    np.testing.assert_allclose(chunk.mean_offset[0], mean_offset([5, 6, 7]))


def test_steps_of_cross_attention_are_rows_beside_the_source():
    steps = [(rows(1, 2, 1, 7, seed=step),) for step in range(4)]
    found = measure_weights(steps, statistics="entropy")
    assert found.layer_kind.item() == "cross"
    assert found.equals(measure_weights([torch.cat([step[0] for step in steps], 2)], statistics="entropy"))


def rows(batch, heads, queries, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(batch, heads, queries, keys, generator=generator, dtype=torch.float64), -1)


def test_rows_that_sum_to_less_put_the_rest_on_no_token():
    share = torch.rand(2, 3, 12, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = rows(2, 3, 12, 12) * share
    found = measure_weights([weights], statistics=list(STATISTICS), band=2).isel(layer=0)
    expected = from_weights(weights, 2)
    columns = {
        "learned_sink": 1 - expected["mass"].mean(-1),
        "entropy": expected["entropy"].mean(-1),
        "max_weight": expected["largest"].mean(-1),
        "gini_simpson": 1 - (expected["collision"] + (1 - expected["mass"]) ** 2).mean(-1),
        "mean_offset": expected["mean_offset"].mean(-1),
        "offset_spread": expected["offset_variance"].mean(-1).sqrt(),
        "first_token": weights[..., 0].mean(-1),
        "band_sum": expected["band"].sum(2),
    }
    for name, value in columns.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_arrays_of_numpy_layers_of_other_heads_and_cross_attention():
    layers = (
        rows(1, 2, 8, 8).numpy(),
        rows(1, 3, 8, 8).tril() / rows(1, 3, 8, 8).tril().sum(-1, keepdim=True),
        rows(1, 3, 8, 5),
    )
    found = measure_weights(layers)
    assert found.layer_kind.values.tolist() == ["self", "causal", "cross"]
    assert np.isnan(found.entropy.values[0, 0, 2])
    assert np.isfinite(found.entropy.values[0, 1:]).all()
    whole = torch.stack([rows(2, 2, 8, 8), rows(2, 2, 8, 8, seed=1)])
    listed = measure_weights(list(whole), statistics="entropy")
    assert measure_weights(whole.numpy(), statistics="entropy").equals(listed)


def test_tokens_give_lengths_and_are_in_the_result():
    weights = rows(2, 2, 4, 4)
    weights[1, :, :, 3] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    found = measure_weights([weights], tokens=[["The", " tide", " is", " out"], ["It", " is", " in"]])
    assert found.length.values.tolist() == [4, 3]
    assert found.token.values.tolist()[1] == ["It", " is", " in", ""]


SQUARE = (2, 3, 6, 6)


def of(*shapes):
    """Layers of weights of these shapes, or steps of such layers."""
    return [rows(*one) if isinstance(one, tuple) else of(*one) for one in shapes]


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (lambda: [rows(*SQUARE) - 0.5], {}, "expected weights from 0 to 1, after the softmax"),
        (lambda: [rows(*SQUARE) * 2], {}, "a row that sums to 2.0000"),
        (lambda: [rows(*SQUARE).mT.contiguous()], {}, "softmax over keys"),
        (lambda: [rows(*SQUARE) / 0], {}, "NaN or infinity"),
        (lambda: [rows(*SQUARE)[0]], {}, "layer 0 of the weights has the shape .3, 6, 6."),
        (lambda: of(SQUARE, (1, 3, 6, 6)), {}, "layer 1 of the weights has 1 texts; expected 2, as in layer 0"),
        (lambda: rows(*SQUARE), {}, "one array of weights has the shape .2, 3, 6, 6."),
        (list, {}, "have no layer"),
        (lambda: of((2, 3, 6, 0)), {}, "none of length 0"),
        (lambda: of((1, 2, 6, 6), (1, 2, 4, 4)), {}, "layer 1 of the weights has 4 keys; expected 6"),
        (lambda: of([(1, 2, 6, 6)], [(1, 2, 1, 9)]), {}, "one more key for each new query"),
        (lambda: of([(1, 2, 6, 6)] * 2, [(1, 2, 1, 7)]), {}, "expected the same number in each"),
        (lambda: of((1, 2, 6, 6)), {"mask": [[1, 1, 1]]}, r"mask has the shape \(1, 3\); expected \(1, 6\)"),
        (lambda: of((1, 2, 6, 6)), {"mask": [[0] * 6]}, "a real token in each text"),
        (lambda: of((1, 2, 6, 6)), {"mask": [[1] * 6], "lengths": [5]}, "mask does not match the lengths"),
        (lambda: of(SQUARE), {"lengths": [6, 7]}, "have 2 of 1 to 6. Correct lengths"),
        (lambda: of(SQUARE), {"lengths": [6, 4]}, "on padding; expected 0: mask it"),
        (lambda: of(SQUARE), {"causal": True}, "it is not causal"),
        (lambda: of(SQUARE), {"lengths": [6, 6], "tokens": [["a"], ["b"]]}, "pass one of them"),
        (lambda: of(SQUARE), {"special": [[True]]}, "special marks"),
        (lambda: of(SQUARE), {"statistics": "nothing"}, "there is no statistic 'nothing'"),
    ],
)
def test_invalid_weights_and_options_are_rejected(weights, options, message):
    with pytest.raises(AttnscopeError, match=message):
        measure_weights(weights(), **options)


class Cache:
    """As the `ActivationCache` of TransformerLens: names and values, without being a mapping."""

    def __init__(self, values):
        self.values = values

    def __getitem__(self, name):
        return self.values[name]

    def keys(self):
        return self.values.keys()


def test_a_cache_of_transformer_lens_measures_as_its_patterns():
    layers = torch.rand(12, 1, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(12)]
    values = dict(zip(names[::-1], reversed(layers), strict=True)) | {"blocks.0.attn.hook_z": torch.zeros(1)}
    expected = measure_weights(list(layers))
    for given in (values, Cache(values), {name: one[0] for name, one in values.items()}):
        xr.testing.assert_identical(measure_weights(given), expected)
    for missing in (names[:1], names):
        with pytest.raises(AttnscopeError, match=r"but not blocks\.0\.attn\.hook_pattern; expected every layer from 0"):
            measure_weights({name: one for name, one in values.items() if name not in missing})
