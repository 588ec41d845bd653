"""Matrices that one has already are measured as a scan measures the model that gave them."""

import numpy as np
import pytest
import torch

from attnscope import measure_weights
from attnscope.capture.borrow import LoadedModel
from attnscope.measure.quantities import STATISTICS
from attnscope.measure.texts import statistics_of
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError
from tests.attention.oracle import from_weights
from tests.families import tiny


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


def check_equal(found, expected):
    for name in expected.data_vars:
        np.testing.assert_allclose(
            found[name].values.astype(float), expected[name].values.astype(float), rtol=1e-6, atol=1e-7, err_msg=name
        )


@torch.no_grad()
def test_a_text_padded_on_the_left_is_measured_by_its_mask_as_it_is_alone(writer):
    mask = (IDS > 0).long()
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = writer(IDS, attention_mask=mask, position_ids=places, output_attentions=True).attentions
    found = measure_weights(padded, mask=mask, statistics=["entropy", "profile", "first_token"], band=3)
    assert found.layer_kind.values.tolist() == ["causal", "causal"]
    assert found.length.values.tolist() == [6, 8]
    for text, ids in enumerate((IDS[0, 2:], IDS[1])):
        expected = alone(writer, ids)
        for name in ("entropy", "profile", "first_token"):
            np.testing.assert_allclose(found[name][text], expected[name][0], atol=1e-7, err_msg=name)


@torch.no_grad()
def test_padding_on_the_left_that_nobody_named_is_rejected(writer):
    mask = (IDS > 0).long()
    padded = writer(IDS, attention_mask=mask, output_attentions=True).attentions
    with pytest.raises(AttnscopeError, match="text 1: its first 2 tokens get no weight"):
        measure_weights(padded)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_steps_of_generate_are_one_pass_over_the_whole_text(writer, cache):
    options = {"do_sample": False, "output_attentions": True, "return_dict_in_generate": True}
    made = writer.generate(IDS[1:], max_new_tokens=5, pad_token_id=0, cache_implementation=cache, **options)
    with torch.no_grad():
        expected = alone(writer, made.sequences[0, :-1])
    check_equal(measure_weights(made.attentions, statistics=ALL, band=3), expected)


def test_steps_of_padded_prompts_take_the_mask_of_the_prompts(writer):
    mask = (IDS > 0).long()
    options = {"do_sample": False, "output_attentions": True, "return_dict_in_generate": True}
    made = writer.generate(IDS, attention_mask=mask, max_new_tokens=4, pad_token_id=0, **options)
    found = measure_weights(made.attentions, mask=mask, statistics="profile", band=3)
    for text, start in enumerate((2, 0)):
        with torch.no_grad():
            expected = alone(writer, made.sequences[text, start:-1])
        np.testing.assert_allclose(found.profile[text], expected.profile[0], atol=1e-7)


def test_a_single_query_is_the_last_token(writer):
    with torch.no_grad():
        whole = writer(IDS[1:], output_attentions=True).attentions
    step = [layer[:, :, -1:] for layer in whole]
    found = measure_weights(step, statistics=["mean_offset", "profile"], band=3)
    expected = np.stack([(layer[0, :, -1].numpy() * np.arange(-7, 1)).sum(-1) for layer in whole])
    np.testing.assert_allclose(found.mean_offset[0], expected)
    assert found.layer_kind.values.tolist() == ["causal", "causal"]
    across = measure_weights(step, statistics="mean_offset", band=3, causal=False)
    assert across.layer_kind.values.tolist() == ["cross", "cross"]
    np.testing.assert_allclose(across.mean_offset[0], expected + 7)


def test_chunks_of_the_last_tokens_are_said_to_be_causal(writer):
    with torch.no_grad():
        whole = writer(IDS[1:], output_attentions=True).attentions
    found = measure_weights([layer[:, :, 5:] for layer in whole], statistics="mean_offset", causal=True)
    expected = [
        np.mean([(layer[0, :, row].numpy() * (np.arange(8) - row)).sum(-1) for row in (5, 6, 7)], 0) for layer in whole
    ]
    np.testing.assert_allclose(found.mean_offset[0], expected)


def test_steps_of_cross_attention_are_rows_beside_the_source():
    steps = [(rows(1, 2, 1, 7, seed=step),) for step in range(4)]
    found = measure_weights(steps, statistics="entropy")
    assert found.layer_kind.item() == "cross"
    assert found.equals(measure_weights([torch.cat([step[0] for step in steps], 2)], statistics="entropy"))


@pytest.mark.parametrize(
    ("weights", "options", "said"),
    [
        ([(1, 2, 6, 6), (1, 2, 4, 4)], {}, "layer 1 of the weights has 4 keys; expected 6"),
        ([(1, 2, 6, 6)], {"mask": [[1, 1, 1]]}, r"mask has the shape \(1, 3\); expected \(1, 6\)"),
        ([(1, 2, 6, 6)], {"mask": [[0] * 6]}, "a real token in each text"),
        ([(1, 2, 6, 6)], {"mask": [[1] * 6], "lengths": [5]}, "mask does not match the lengths"),
        ([[(1, 2, 6, 6)], [(1, 2, 1, 9)]], {}, "one more key for each new query"),
        ([[(1, 2, 6, 6)] * 2, [(1, 2, 1, 7)]], {}, "expected the same number in each"),
    ],
)
def test_what_cannot_be_placed_is_rejected(weights, options, said):
    made = [rows(*shape) if isinstance(shape, tuple) else [rows(*each) for each in shape] for shape in weights]
    with pytest.raises(AttnscopeError, match=said):
        measure_weights(made, **options)


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
        "gini_simpson": 1 - expected["collision"].mean(-1),
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


def test_tokens_give_lengths_and_stand_in_the_result():
    weights = rows(2, 2, 4, 4)
    weights[1, :, :, 3] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    found = measure_weights([weights], tokens=[["The", " tide", " is", " out"], ["It", " is", " in"]])
    assert found.length.values.tolist() == [4, 3]
    assert found.token.values.tolist()[1] == ["It", " is", " in", ""]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own: [own - 0.5], "expected weights from 0 to 1, after the softmax"),
        (lambda own: [own * 2], "a row that sums to 2.0000"),
        (lambda own: [own.mT.contiguous()], "softmax over keys"),
        (lambda own: [own / 0], "NaN or infinity"),
        (lambda own: [own[0]], "layer 0 of the weights has the shape .3, 6, 6."),
        (lambda own: [own, own[:1]], "layer 1 of the weights has 1 texts; expected 2, as in layer 0"),
        (lambda own: own, "one array of weights has the shape .2, 3, 6, 6."),
        (lambda own: [], "have no layer"),
        (lambda own: [own[..., :0]], "none of length 0"),
    ],
)
def test_what_are_no_weights_is_refused(change, said):
    with pytest.raises(AttnscopeError, match=said):
        measure_weights(change(rows(2, 3, 6, 6)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lengths": [6, 7]}, "expected 2 numbers from 1 to 6"),
        ({"lengths": [6, 4]}, "on padding; expected 0: mask it"),
        ({"causal": True}, "it is not causal"),
        ({"lengths": [6, 6], "tokens": [["a"], ["b"]]}, "do not match"),
        ({"special": [[True]]}, "special marks"),
        ({"statistics": "nothing"}, "there is no statistic 'nothing'"),
    ],
)
def test_what_does_not_belong_to_the_weights_is_refused(options, said):
    with pytest.raises(AttnscopeError, match=said):
        measure_weights([rows(2, 3, 6, 6)], **options)
