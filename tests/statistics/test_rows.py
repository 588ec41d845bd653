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
