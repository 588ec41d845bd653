"""A call made of weights has these weights, in every engine."""

import pytest
import torch

from attnscope.kernels.call import Need, call_of_weights
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from tests.kernels.statistics_of_weights import from_weights

BAND, BINS = 4, (5, 9, 17)


def weights_of(case):
    generator = torch.Generator().manual_seed(0)
    weights = torch.softmax(3 * torch.randn(2, 3, 40, 40, generator=generator), -1)
    if case != "everywhere":
        weights = weights.tril()
        weights = weights / weights.sum(-1, keepdim=True)
    if case == "empty rows":
        weights[0, 0, 5] = 0  # one head looks nowhere
        weights[1, :, 9] = 0  # no head looks anywhere
    return weights


@pytest.mark.parametrize(("engine", "dtype"), [("compiled", torch.float32), ("plain", torch.float64)])
@pytest.mark.parametrize("case", ["everywhere", "backwards", "empty rows"])
def test_what_is_measured_is_what_the_weights_say(case, engine, dtype):
    """In float64 to its digits, but bands and bins, which are kept in float32; in float32 as closely as any call."""
    weights = weights_of(case).to(dtype)
    weights = weights / weights.sum(-1, keepdim=True).where(weights.sum(-1, keepdim=True) > 0, 1)
    call = call_of_weights(weights)
    output, rows = measure(call, Need.everything(BAND, torch.ones(2, 40, 1), BINS), engine=engine)
    assert output.shape == (2, 3, 40, 0)
    for name, expected in from_weights(weights.double(), BAND, BINS).items():
        exact = dtype == torch.float64 and name not in {"band", "bins"}
        limits = {"atol": 1e-12, "rtol": 1e-10} if exact else {"atol": 2e-5, "rtol": 1e-4}
        torch.testing.assert_close(getattr(rows, name).double(), expected, **limits)
    torch.testing.assert_close(attend_in_full(call)[1], weights)


def test_a_row_with_nan_is_nan_and_no_other():
    weights = weights_of("backwards")
    weights[0, 1, 7] = torch.nan
    _, rows = measure(call_of_weights(weights), Need(entropy=True))
    strange = rows.entropy.isnan()
    assert bool(strange[0, 1, 7])
    assert int(strange.sum()) == 1
