"""Rows of their own places, and what the log-sum-exp tells of all rows, held against the pass over everything."""

from dataclasses import fields, replace

import pytest
import torch

from attnscope.kernels.call import Need, RowMeasures
from attnscope.kernels.engines import measure
from attnscope.kernels.sampled import measure_by_level, measure_rows
from tests.kernels.test_measure import BINS, CALLS, LENGTH

NAMES = ("causal", "left padding, causal", "window per head", "random mask, causal", "sinks", "grouped queries")
NAMES = (*NAMES, "bias by offset, fewer queries", "soft cap", "one token", "bfloat16")
NEED = Need.everything(10, torch.ones(2, LENGTH, 1) * (torch.arange(LENGTH) % 300 == 0)[:, None], BINS)


def rows_of(call):
    queries = call.query.shape[2]
    texts = [torch.arange(text, queries, 1 + queries // 30)[:15] for text in range(2)]
    return torch.stack(texts) if queries > 1 else torch.zeros(2, 1, dtype=torch.int64)


def need_of(call):
    return replace(NEED, columns=NEED.columns[:, : call.key.shape[2]])


def picked(measures, rows):
    at = rows if rows.ndim == 3 else rows[:, None].expand(-1, measures.mass.shape[1], -1)
    values = {field.name: getattr(measures, field.name) for field in fields(RowMeasures)}
    return {
        name: value.gather(2, at[(...,) + (None,) * (value.ndim - 3)].expand(*at.shape, *value.shape[3:]))
        for name, value in values.items()
        if value is not None
    }


@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_taken_out_keep_their_measures(name, engine):
    call = CALLS[name]
    rows = rows_of(call)
    some = measure(call.take(rows), need_of(call), engine=engine)[1]
    for measured, value in picked(measure(call, need_of(call), engine=engine)[1], rows).items():
        torch.testing.assert_close(getattr(some, measured), value, atol=2e-3, rtol=2e-5, msg=measured)


@pytest.mark.parametrize("name", NAMES)
def test_the_output_and_what_is_had_of_all_rows_are_those_of_the_pass_over_everything(name):
    call = CALLS[name]
    output, every = measure_by_level(call, need_of(call))
    expected, whole = measure(call, need_of(call))
    close = 2e-2 if call.query.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(output, expected, atol=close, rtol=close)
    for measured in ("log_sum_exp", "mass", "band", "columns"):
        wide = getattr(every, measured), getattr(whole, measured)
        torch.testing.assert_close(*wide, atol=5e-6, rtol=1e-5, msg=measured)


@pytest.mark.parametrize("name", NAMES)
def test_each_key_head_has_rows_of_its_own(name):
    call = CALLS[name]
    last = call.query.shape[2] - 1
    rows = torch.stack([(rows_of(call) + head).clamp_max(last) for head in range(call.key.shape[1])], 1)
    need = replace(need_of(call), columns=None)
    some = measure_rows(call, need, rows.expand(len(call.query), -1, -1))
    whole = measure(call, need)[1]
    of_heads = rows.repeat_interleave(call.group, 1)
    for measured, value in picked(whole, of_heads).items():
        torch.testing.assert_close(getattr(some, measured), value, atol=2e-3, rtol=2e-5, msg=measured)
