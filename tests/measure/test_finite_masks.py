"""A key whose weight is exactly 0 is masked, whatever number the mask adds; other low biases mask nothing."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from transformers import PretrainedConfig, PreTrainedModel

import attnscope
from attnscope.capture.functional import call_of_product
from attnscope.explanation.profiles import visible_offsets
from attnscope.kernels.call import AttentionCall, with_masked_keys
from attnscope.kernels.masks import OffsetBias, forbids
from attnscope.kernels.positions import alibi_bias
from attnscope_monitor import HeadMonitor
from attnscope_zoo.catalogue import build

LENGTH, WIDTH, HEADS = 9, 16, 2
AHEAD = torch.ones(LENGTH, LENGTH).triu(1).bool()
PADDED = torch.arange(LENGTH) >= torch.tensor([LENGTH, 6])[:, None]
STATES = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
#: Means over the rows of texts of 9 and 6 tokens: the entropy of uniform attention under a causal mask.
UNIFORM = [np.log(np.arange(1, length + 1)).mean() for length in (9, 6)]


class Attention(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, mask):
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return out.transpose(1, 2).flatten(2)


class Flex(Attention):
    def forward(self, x, mask):
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

        def add(score, text, head, row, column):
            return score + mask[text, 0, row, column]

        return flex_attention(query, key, value, score_mod=add).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """PyTorch's layer, with the mask in two parts."""

    def __init__(self, fill):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True)
        self.causal, self.padding = (torch.zeros(m.shape).masked_fill(m, fill) for m in (AHEAD, PADDED))

    def forward(self, x, _):
        return self.layer(x, src_mask=self.causal, src_key_padding_mask=self.padding)


class Own(PreTrainedModel):
    """Somebody's model, which registers nothing with transformers."""

    def __init__(self, fill):
        super().__init__(PretrainedConfig(vocab_size=20, hidden_size=WIDTH))
        self.table, self.attention, self.fill = nn.Embedding(20, WIDTH), Attention(), fill
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        hidden = AHEAD[: input_ids.shape[1], : input_ids.shape[1]][None, None]
        if attention_mask is not None:
            hidden = hidden | (attention_mask[:, None, None] == 0)
        mask = torch.zeros(hidden.shape).masked_fill(hidden, self.fill)
        return (self.attention(self.table(input_ids), mask),)


def both(fill):
    hidden = AHEAD | PADDED[:, None, None]
    return torch.zeros(hidden.shape).masked_fill(hidden, fill)


def watched(kind, fill):
    torch.manual_seed(0)
    module = kind(fill).eval()
    with attnscope.watch(module, band=3) as seen, torch.no_grad():
        module(STATES, both(fill))
    return seen.result()


@pytest.mark.parametrize("kind", [Attention, Flex, Layer])
@pytest.mark.parametrize("fill", [-1e9, -1e4])
def test_finite_masks_measure_as_infinite_ones(kind, fill):
    found, expected = watched(kind, fill), watched(kind, -math.inf)
    assert found.layer_kind.item() == "causal"
    assert found.length.values.tolist() == [9, 6]
    np.testing.assert_allclose(found.equal_entropy[:, 0], UNIFORM, rtol=1e-6)
    assert found.attrs["labels"] == expected.attrs["labels"]
    for name, values in expected.data_vars.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=str(name))


@pytest.mark.parametrize("fill", [-1e9, -1e4])
def test_models_of_ones_own_and_monitors_know_finite_masks(fill):
    torch.manual_seed(0)
    module = Attention().train()
    monitor = HeadMonitor()
    monitor.measure_next(module, 0)
    module(STATES, both(fill))
    seen = watched(Attention, -math.inf)
    share = seen.entropy.mean("window")[0] / seen.equal_entropy.mean("window")[0]
    np.testing.assert_allclose(monitor.dataset.entropy_share[0, 0], share, rtol=1e-5)

    torch.manual_seed(0)
    model, ids = Own(fill).eval(), [list(range(1, 10)), list(range(4, 10))]
    found = attnscope.scan(model, ids, tokenizer=build("previous-decoder-2").tokenizer, batch_size=2, window=9, band=3)
    assert found.layer_kind.item() == "causal"
    np.testing.assert_allclose(found.equal_entropy[:, 0], UNIFORM, rtol=1e-6)


def test_low_biases_that_mask_nothing_stay():
    """ALiBi lowers a far key to a weight of 0 in some heads only; a score of 6,000 outweighs a mask of -1e4."""
    query = torch.randn(1, 8, 2048, 4, generator=torch.Generator().manual_seed(0))
    bias = alibi_bias(8, 2048, 2048)[None].float()
    assert bias.min() < -1000
    assert not forbids(call_of_product(query, query, query, bias).bias).any()
    hidden = torch.ones(9, 9).triu(1).bool()[None, None]
    small = query[:, :, :9]
    masked = call_of_product(small, small, small, bias[..., :9, :9].masked_fill(hidden, -1e4))
    assert torch.equal(forbids(masked.bias), hidden.expand(1, 8, 9, 9))
    assert visible_offsets(masked, 2).tolist() == [True, True, True, False, False]
    large = small * 100
    assert not forbids(call_of_product(large, large, large, masked.bias.clamp_min(-1e4)).bias).any()
    by_offset = OffsetBias(torch.where(torch.arange(-8, 9) > 0, -1e9, 0.0).expand(1, 8, 17), 9)
    offsets = with_masked_keys(AttentionCall(small, small, small, 1.0, bias=by_offset))
    assert torch.equal(forbids(offsets.bias.written()), hidden.expand(1, 8, 9, 9))
