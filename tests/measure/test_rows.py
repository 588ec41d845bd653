"""Statistics of rows whose every weight is known: uniform attention under masks, and weights planted by position."""

import numpy as np
import pytest
import torch

from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.reference import causal_mask
from attnscope.measure.passes import plan
from attnscope.measure.rows import equal_rows, fitted_places, reduce_call, row_factors
from tests.kernels.statistics_of_weights import from_weights
from tests.measure.test_groups import CALLS as CALLS_OF_GROUPS
from tests.measure.test_groups import GAPS, N

BINS = (3, 5, 9)
SQUARE = (2, 1, N, N)
CALLS = {name: sides for name, sides in CALLS_OF_GROUPS.items() if "sinks" not in sides} | {
    "gaps, causal": {"mask": GAPS, "causal": True},
    "a very low number": {
        "bias": torch.zeros(1, 1, N, N).masked_fill(~causal_mask(N, N), torch.finfo(torch.float32).min)
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_equal_weights_are_those_of_the_mask(name):
    x = torch.zeros(2, 3, N, 4)
    call = AttentionCall(x, x, x, scale=1.0, **CALLS[name])
    allowed = torch.ones(SQUARE, dtype=torch.bool) if call.mask is None else call.mask.expand(SQUARE)
    if call.causal or call.bias is not None:
        allowed = allowed & causal_mask(N, N)
    weights = allowed.double() / allowed.sum(-1, keepdim=True).clamp_min(1)
    columns = torch.rand(2, N, 2, generator=torch.Generator().manual_seed(1))
    rows = equal_rows(call, Need(band=2, bins=BINS, entropy=True, columns=columns))
    expected = from_weights(weights, 2, BINS)
    for part in ("mass", "entropy", "band", "bins"):
        torch.testing.assert_close(getattr(rows, part).double(), expected[part], atol=1e-6, rtol=1e-6, msg=part)
    torch.testing.assert_close(rows.columns, weights @ columns.double()[:, None])


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


HEADS, ROWS, PLACES = 3, 12, 5


@pytest.fixture
def planted():
    """Sums of places and of rows of heads that know the place alone, with the counts, and their weights by place."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 4, (ROWS, PLACES)).astype(float)
    share, mass = rng.gamma(1.0, size=(HEADS, PLACES)), rng.uniform(0.5, 1.0, (HEADS, ROWS))
    weights = share[:, None] * counts
    weights *= (mass / weights.sum(-1))[..., None]
    return weights.sum(1), mass, counts, weights


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_planted_table_is_found_again(planted, kind):
    *given, weights = planted
    share, _ = fitted_places(*map(kind, given))
    row = row_factors(share, *map(kind, given[1:]))
    found = row[..., None] * share[:, None] * kind(given[2])
    np.testing.assert_allclose(found, weights, atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), given[1], rtol=1e-12)
