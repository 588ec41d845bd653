"""Sums and maxima of blocks, held against those of the explicit weights."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from attnscope import AttnscopeError
from attnscope.kernels.blocks import block_weights
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from tests.kernels.statistics_of_weights import attended
from tests.kernels.test_measure import CALLS


@lru_cache(maxsize=2)  # for both ways, which follow each other
def by_definition(name, size):
    _, weights = attended(CALLS[name])
    cuts = [weights.split(size, dim=2)[i].split(size, dim=3) for i in range(-(-weights.shape[2] // size))]
    total = torch.stack([torch.stack([cell.sum((2, 3)) for cell in row], -1) for row in cuts], -2)
    return total, torch.stack([torch.stack([cell.amax((2, 3)) for cell in row], -1) for row in cuts], -2)


def wide(call):
    """The same in float64, which the compiled loop does not take."""
    tensors = {name: getattr(call, name) for name in ("query", "key", "value", "bias", "sinks")}
    return replace(call, **{name: one.double() for name, one in tensors.items() if one is not None})


@pytest.mark.parametrize("change", [lambda call: call, wide], ids=["compiled", "in PyTorch"])
@pytest.mark.parametrize("name", CALLS)
def test_blocks_are_sums_and_maxima_of_the_weights(name, change):
    call = change(CALLS[name])
    log_sum_exp = measure(call, Need())[1].log_sum_exp
    for size in (64, 520) if name in {"causal", "mask per head"} else (64,):  # of whole tiles, and of several
        blocks = block_weights(call, log_sum_exp, size)
        total, largest = by_definition(name, size)
        torch.testing.assert_close(blocks.total.double(), total, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(blocks.largest.double(), largest, atol=1e-6, rtol=1e-5)


def small(dtype=torch.float32):
    x = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return AttentionCall(x, x, x, 1.0, causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_left_out_and_rows_of_nan_tell(dtype):
    call = small(dtype)
    log_sum_exp = measure(call, Need())[1].log_sum_exp
    log_sum_exp[..., 3] = math.inf
    blocks = block_weights(call, log_sum_exp, 2)
    torch.testing.assert_close(blocks.total.sum(-1), torch.tensor([[[2.0, 1.0, 2.0]] * 2]))
    log_sum_exp[0, 1, 5] = math.nan
    assert block_weights(call, log_sum_exp, 2).total.isnan().any(-1).tolist() == [[[False] * 3, [False, False, True]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fully_masked_rows_have_no_weight(dtype):
    call = small(dtype)
    bias = torch.zeros(1, 1, 6, 6, dtype=dtype)
    bias[..., 1, :] = -math.inf
    call = replace(call, bias=bias, mask=torch.arange(6)[:, None].ne(4).expand(1, 1, 6, 6))
    blocks = block_weights(call, measure(call, Need())[1].log_sum_exp, 1)
    torch.testing.assert_close(blocks.total.sum(-1)[0, 0], torch.tensor([1.0, 0, 1, 1, 0, 1]))


def test_a_size_below_one_is_rejected():
    with pytest.raises(AttnscopeError, match="size of a block is 0: expected 1 or more"):
        block_weights(small(), torch.zeros(1, 2, 6), 0)
