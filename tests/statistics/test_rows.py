"""Statistics of calls whose every weight is known."""

import pytest
import torch

from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import measure
from attnscope.measure.passes import plan
from attnscope.measure.rows import reduce_call


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3)])
def test_uniform_attention_has_one_profile_wherever_there_is_a_pair(queries, keys):
    """Also in cross-attention, where offsets run from -(queries - 1) to keys - 1."""
    query, key = torch.zeros(1, 1, queries, 4), torch.zeros(1, 1, keys, 4)
    _, rows = measure(AttentionCall(query, key, key, scale=1.0), plan(["profile"], 8, torch.zeros(1, keys, 2)))
    real = [torch.ones(1, count, dtype=torch.bool) for count in (queries, keys)]
    profile = reduce_call(rows, ["profile"], *real)["profile"][0, 0]
    offset = torch.arange(-8, 9)
    expected = torch.where((offset > -queries) & (offset < keys), 1 / keys, torch.nan)
    torch.testing.assert_close(profile, expected.double(), equal_nan=True)


def test_inside_outside_and_the_learned_sink_hold_all_weight():
    x = torch.randn(1, 2, 12, 4, generator=torch.Generator().manual_seed(0))
    names = ("band_sum", "outside", "learned_sink")
    call = AttentionCall(x, x, x, scale=1.0, sinks=torch.tensor([1.0, 3.0]))
    _, rows = measure(call, plan(names, 2, torch.zeros(1, 12, 2)))
    everywhere = torch.ones(1, 12, dtype=torch.bool)
    found = reduce_call(rows, names, everywhere, everywhere)
    total = found["band_sum"].sum(-1) / 12 + found["outside"] + found["learned_sink"]
    torch.testing.assert_close(total, torch.ones(1, 2).double(), atol=1e-6, rtol=0)
    assert float(found["learned_sink"].min()) > 0.05


def test_the_spread_of_uniform_attention_is_that_of_whole_numbers():
    """Every row has the variance (n^2 - 1) / 12 of the numbers 1..n."""
    x = torch.zeros(1, 1, 9, 4)
    _, rows = measure(AttentionCall(x, x, x, scale=1.0), plan(["offset_spread"], 2, torch.zeros(1, 9, 2)))
    everywhere = torch.ones(1, 9, dtype=torch.bool)
    spread = reduce_call(rows, ["offset_spread"], everywhere, everywhere)["offset_spread"]
    assert float(spread) == pytest.approx((80 / 12) ** 0.5, rel=1e-6)
