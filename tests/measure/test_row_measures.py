"""A measure of a row that no engine has: declared once, it is taken by any engine, of any call."""

from dataclasses import replace

import pytest
import torch

from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.measure import quantities
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.quantities import RowMeasure, Statistic, Wording, needing_all
from attnscope.measure.rows import row_measures

LENGTH = 530  # two tiles of keys, and two blocks of queries
# as many keys as the Rényi entropy of order 1/2 tells
ROOTS = RowMeasure(lambda weights: weights.sqrt().sum(-1), finish=torch.square)
LARGEST = RowMeasure(lambda weights: weights.amax(-1), join=torch.maximum)
SQUARES = RowMeasure(lambda weights: weights.square().sum(-1))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = (draw(2, 4, LENGTH, 16, seed=seed) for seed in range(3))
CALLS = {
    "plain": AttentionCall(QUERY, KEY, VALUE, 0.5),
    "causal, grouped": AttentionCall(QUERY, KEY[:, :2], VALUE[:, :2], 0.5, causal=True),
    "gaps": AttentionCall(QUERY, KEY, VALUE, 0.5, mask=draw(2, 1, LENGTH, LENGTH, seed=4) > 0),
    "sinks": AttentionCall(QUERY, KEY, VALUE, 0.5, sinks=draw(4, seed=5)),
    "float64": AttentionCall(QUERY.double(), KEY.double(), VALUE.double(), 0.5, causal=True),
    "few": AttentionCall(QUERY[:, :, :9], KEY[:, :, :9], VALUE[:, :, :9], 0.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_measures_are_those_of_the_weights(name):
    call = CALLS[name]
    weights = attend_in_full(call)[1].double()
    engines = ["auto", "plain"]
    for engine in engines:
        rows = measure(call, Need(collision=True, largest=True), engine=engine)[1]
        found = row_measures(call, rows.log_sum_exp, [ROOTS, LARGEST, SQUARES])
        torch.testing.assert_close(found[ROOTS], weights.sqrt().sum(-1).square(), rtol=2e-5, atol=1e-5)
        torch.testing.assert_close(found[LARGEST], rows.largest, rtol=2e-5, atol=1e-6)
        torch.testing.assert_close(found[SQUARES], rows.collision, rtol=2e-5, atol=1e-6)


def test_rows_without_keys_have_nothing_and_rows_of_nan_are_nan():
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool)
    mask[..., 3, :] = False
    query = QUERY[:, :, :9].clone()
    query[0, 0, 5] = torch.nan
    call = replace(CALLS["few"], query=query, mask=mask)
    found = row_measures(call, measure(call, Need())[1].log_sum_exp, [ROOTS])[ROOTS]
    assert bool((found[:, :, 3] == 0).all())
    assert found.isnan().nonzero().tolist() == [[0, 0, 5]]


@pytest.fixture
def statistic(monkeypatch):
    """All that a new measure of a row takes: one entry of the catalogue."""
    entry = Statistic(
        Wording("Keys of a row by its roots", "tokens"), lambda rows: rows.mean_of(ROOTS), (ROOTS,), has_equal=True
    )
    monkeypatch.setitem(quantities.STATISTICS, "roots", entry)
    monkeypatch.setitem(quantities.KNOWN, "roots", entry)
    quantities._needs_of.cache_clear()
    yield "roots"
    quantities._needs_of.cache_clear()


def test_a_statistic_of_such_a_measure_is_its_mean_over_real_queries(statistic):
    call = CALLS["causal, grouped"]
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[1, 500:] = False
    _, found = measure_call(call, (statistic, "entropy"), 3, LENGTH - 1, Marks(real, real, torch.zeros_like(real)))
    expected = attend_in_full(call)[1].double().sqrt().sum(-1).square()
    means = torch.stack([expected[0].mean(-1), expected[1, :, :500].mean(-1)])
    torch.testing.assert_close(found[statistic], means, rtol=2e-5, atol=1e-5)
    keys = torch.arange(1, LENGTH + 1).double()  # a uniform row of n keys counts as n
    torch.testing.assert_close(found["equal_roots"][:, 0], torch.stack([keys.mean(), keys[:500].mean()]))
    assert needing_all(["entropy", statistic]) == [statistic]
