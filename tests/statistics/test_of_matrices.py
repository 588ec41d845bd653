"""Matrices that one has already are measured as a scan measures the model that gave them."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from attnscope import measure_weights
from attnscope.capture import LoadedModel
from attnscope.corpus import Window
from attnscope.errors import AttnscopeError
from attnscope.statistics import STATISTICS, statistics_of
from tests.attention.oracle import from_weights

SMALL = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 16}


class Tokenizer:
    pad_token_id = eos_token_id = 0


def window(length, seed):
    ids = np.random.default_rng(seed).integers(1, 50, length)
    special = (True, *[False] * (length - 2), True)
    return Window(tuple(ids.tolist()), special, ((0, 0),) * length, "text", 0, ("x",) * length)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@torch.no_grad()
def test_equal_to_a_scan_of_the_model(kind):
    torch.manual_seed(0)
    if kind == "bert":
        model = BertModel(BertConfig(vocab_size=50, **SMALL))
    else:
        model = GPT2Model(GPT2Config(vocab_size=50, n_positions=40, n_embd=16, n_head=4, n_layer=2))
    for name, parameter in model.named_parameters():
        if "weight" in name:
            parameter.mul_(5)  # heads that differ from equal weights
    model = model.double().eval()
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
            found[name].values.astype(float),
            expected[name].values.astype(float),
            rtol=1e-6,
            atol=1e-6,
            err_msg=name,
        )
    assert found.kinds == expected.kinds


def rows(batch, heads, queries, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(
        2 * torch.randn(batch, heads, queries, keys, generator=generator, dtype=torch.float64), -1
    )


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
        (lambda own: [own, own[:1]], "layer 1 of the weights has 1 texts, layer 0 has 2"),
        (lambda own: own, "one array of weights has the shape .2, 3, 6, 6."),
        (lambda own: [], "hold no layer"),
        (lambda own: [own[..., :0]], "none of them 0 long"),
    ],
)
def test_what_are_no_weights_is_refused(change, said):
    with pytest.raises(AttnscopeError, match=said):
        measure_weights(change(rows(2, 3, 6, 6)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lengths": [6]}, "expected 2 numbers from 1 to 6"),
        ({"lengths": [6, 7]}, "expected 2 numbers from 1 to 6"),
        ({"lengths": [6, 4]}, "on what lies beyond a text's length"),
        ({"causal": True}, "it is not causal"),
        ({"lengths": [6, 6], "tokens": [["a"], ["b"]]}, "do not agree"),
        ({"special": [[True]]}, "special marks"),
        ({"statistics": "nothing"}, "there is no statistic 'nothing'"),
        ({"band": 0}, "band"),
    ],
)
def test_what_does_not_belong_to_the_weights_is_refused(options, said):
    with pytest.raises(AttnscopeError, match=said):
        measure_weights([rows(2, 3, 6, 6)], **options)
