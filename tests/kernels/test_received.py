"""Sums over columns and diagonals, held against those of the explicit weights in float64."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from attnscope import AttnscopeError
from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.positions import alibi_slopes, offsets, t5_buckets
from attnscope.kernels.sums import column_sums, exchanged, weight_sums
from tests.kernels.statistics_of_weights import attended
from tests.kernels.test_blocks import wide
from tests.kernels.test_measure import CALLS as MEASURED
from tests.kernels.test_measure import LENGTH, draw

SLOPES = alibi_slopes(4).float()[:, None, None]
PLAIN = MEASURED["plain"]
SOME = ("causal", "padding", "left padding, causal", "window per head", "random mask, causal", "mask per head")
BY_OFFSET = [name for name in MEASURED if name.startswith("bias by offset")]
MORE = (*BY_OFFSET, "sinks", "grouped queries", "cross, narrow values", "one token", "bfloat16")
CALLS = {name: MEASURED[name] for name in SOME + MORE} | {
    "ALiBi": replace(PLAIN, bias=(SLOPES * offsets(LENGTH, LENGTH))[None], causal=True),
    "T5": replace(PLAIN, bias=draw(32, 4)[t5_buckets(offsets(LENGTH, LENGTH))].permute(2, 0, 1)[None]),
    "soft cap, bias and sinks": replace(
        PLAIN, query=4 * PLAIN.query, softcap=3.0, bias=draw(1, 1, LENGTH, LENGTH), sinks=draw(4)
    ),
    "bias that forbids": replace(
        PLAIN,
        bias=torch.where(torch.arange(LENGTH) > 9, 0.0, torch.finfo(torch.float32).min).expand(1, 1, LENGTH, LENGTH),
    ),
    "float16": replace(PLAIN, **{name: getattr(PLAIN, name).half() for name in ("query", "key", "value")}),
}
LAST = 32


def close(call):
    """Relative: float32 sums of up to 512 weights, each of a score that is rounded to a part of the largest."""
    return {"rtol": 1e-12 if call.query.dtype == torch.float64 else 3.5e-6, "atol": 1e-7}


@lru_cache(maxsize=1)  # for both ways, which follow each other
def weights_of(name):
    return attended(CALLS[name])[1]


def counting(call):
    """The last tokens of the second text are padding."""
    counted = torch.ones(call.query.shape[0], call.query.shape[2], dtype=torch.bool)
    counted[1:, 250:] = False
    return counted


@pytest.mark.parametrize("change", [lambda call: call, wide], ids=["compiled", "in PyTorch"])
@pytest.mark.parametrize("name", CALLS)
def test_sums_are_those_of_the_columns_and_diagonals(name, change):
    call = change(CALLS[name])
    rows = measure(call, Need())[1]
    counted = counting(call)
    weights = weights_of(name)
    of_last = (
        weights[:, :, : call.query.shape[2]] * (counted & (counted.flip(1).cumsum(1).flip(1) <= LAST))[:, None, :, None]
    )
    weights = weights * counted[:, None, :, None]
    sums = weight_sums(call, rows.log_sum_exp, counted, received=True, offsets=True)
    torch.testing.assert_close(sums.received, weights.sum(2), **close(call))
    reach = range(1 - weights.shape[2], weights.shape[3])
    diagonals = [torch.diagonal(weights, offset, dim1=-2, dim2=-1).sum(-1) for offset in reach]
    torch.testing.assert_close(sums.offsets, torch.stack(diagonals, -1), **close(call))
    last = column_sums(call, rows.log_sum_exp, counted, LAST)
    torch.testing.assert_close(last, of_last.sum(2), **close(call))
    mass = rows.mass.where(counted[:, None], 0.0).sum(-1)
    torch.testing.assert_close(sums.received.sum(-1), mass, rtol=1e-6, atol=0)
    chosen = (-LENGTH, -300, -299, -1, 0, 7, LENGTH)
    found = weights_at_offsets(call, rows.log_sum_exp, chosen).where(counted[:, None, :, None], 0.0)
    for column, offset in enumerate(chosen):
        expected = torch.diagonal(weights, offset, dim1=-2, dim2=-1)
        first = max(0, -offset)
        own = found[:, :, first : first + expected.shape[-1], column].double()
        torch.testing.assert_close(own, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("name", [*SOME[2:5], BY_OFFSET[0], "sinks", "grouped queries", "soft cap, bias and sinks"])
def test_the_log_sum_exp_of_the_exchanged_call_is_the_log_of_what_keys_receive(name, engine):
    call = CALLS[name]
    log_sum_exp = measure(call, Need())[1].log_sum_exp
    level = log_sum_exp.masked_fill(~counting(call)[:, None], math.inf)
    columns = measure(exchanged(call, level), Need(), engine=engine)[1].log_sum_exp.exp()
    columns = columns.flip(-1) if call.causal else columns
    expected = (attended(call)[1] * counting(call)[:, None, :, None]).sum(2)
    torch.testing.assert_close(columns, expected, **close(call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_nan_and_fully_masked_rows(dtype):
    x = draw(1, 2, 6, 4).to(dtype)
    mask = torch.arange(6)[:, None].ne(4).expand(1, 1, 6, 6)
    bias = torch.zeros(1, 1, 6, 6, dtype=dtype)
    bias[..., 1, :] = -math.inf
    call = AttentionCall(x, x, x, 1.0, mask=mask, bias=bias)
    log_sum_exp = measure(call, Need())[1].log_sum_exp
    torch.testing.assert_close(column_sums(call, log_sum_exp).sum(-1), torch.full((1, 2), 4.0).double())
    log_sum_exp[0, 1, 3] = math.nan
    assert column_sums(call, log_sum_exp).isnan().all(-1).tolist() == [[False, True]]
    not_that = torch.arange(6)[None] != 3
    assert not bool(column_sums(call, log_sum_exp, not_that).isnan().any())
    nobody = torch.zeros(1, 6, dtype=torch.bool)
    assert column_sums(call, log_sum_exp, nobody).tolist() == [[[0.0] * 6] * 2]


def test_what_cannot_be_had_is_rejected():
    call = CALLS["one token"]
    log_sum_exp = measure(call, Need())[1].log_sum_exp
    with pytest.raises(AttnscopeError, match="found last=0; expected 1 or more"):
        column_sums(call, log_sum_exp, last=0)
    some = call.take(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(AttnscopeError, match="some queries alone"):
        weight_sums(some, log_sum_exp, offsets=True)
    with pytest.raises(AttnscopeError, match="some queries alone"):
        weights_at_offsets(some, log_sum_exp, (0,))


def test_a_large_log_sum_exp_keeps_its_digits():
    """float32 rounds it by up to 1.5e-5 here, and with it every weight of the row alike."""
    nothing, level = torch.zeros(1, 1, 600, 1), 300.0
    call = AttentionCall(nothing, nothing, nothing, 1.0, bias=torch.full((1, 1, 600, 600), level))
    log_sum_exp = torch.full((1, 1, 600), level + math.log(600), dtype=torch.float64)
    assert abs(float(log_sum_exp[0, 0, 0].float()) - float(log_sum_exp[0, 0, 0])) > 1e-5
    torch.testing.assert_close(column_sums(call, log_sum_exp)[0, 0], torch.ones(600).double(), rtol=3e-6, atol=0)
