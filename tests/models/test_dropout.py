"""Dropout by numbers of 16 bits."""

import pytest
import torch

from attnscope.models.transformer import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_are_dropped_as_the_rate_says_and_the_mean_stays(rate, dtype):
    torch.manual_seed(0)
    drop, ones = Dropout(rate), torch.ones(999, 1001, dtype=dtype, requires_grad=True)
    made = drop(ones)
    made.sum().backward()
    share = float((made == 0).float().mean())
    error = (rate * (1 - rate) / made.numel()) ** 0.5
    assert abs(share - rate) < 4 * error + 2**-16
    assert float(made.detach().max()) == pytest.approx(1 / (1 - rate), rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    assert torch.equal(ones.grad, made.detach())
    rows = (made == 0).float()  # neighbours share a number, not their fate
    together = float((rows[:, 0:-1:4] * rows[:, 1::4]).mean())
    assert abs(together - rate**2) < 0.005
    assert drop.eval()(ones) is ones
