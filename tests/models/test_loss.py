"""R-Drop's loss against its formula and autograd; dropout by numbers of 16 bits; masked keys up to a multiple of 16."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from attnscope.models import translator as _loss
from attnscope.models.transformer import Dropout
from attnscope.models.translator import smoothed_cross_entropy

TOKENS, WIDTH, WORDS = 13, 6, 40


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("cells", [2**21, 4 * WORDS])  # all tokens at once, and blocks with a rest
def test_r_drop_is_its_formula(monkeypatch: pytest.MonkeyPatch, smoothing: float, cells: int) -> None:
    monkeypatch.setattr(_loss, "_CELLS", cells)
    torch.manual_seed(0)
    hidden = torch.randn(2 * TOKENS, WIDTH, requires_grad=True)
    weight = torch.randn(WORDS, WIDTH, requires_grad=True)
    labels = torch.randint(WORDS, (TOKENS,))

    loss = smoothed_cross_entropy(hidden, weight, labels.repeat(2), smoothing, 3.0)
    gradients = torch.autograd.grad(loss, [hidden, weight])

    first, second = (hidden.double() @ weight.double().T).log_softmax(1).chunk(2)
    both = torch.cat([first, second])
    entropies = F.cross_entropy(both, labels.repeat(2), reduction="sum", label_smoothing=smoothing)
    divergences = [
        F.kl_div(other, one, reduction="sum", log_target=True) for one, other in ((first, second), (second, first))
    ]
    expected = (entropies + 3.0 / 2 * sum(divergences)) / 2
    assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    assert_close(gradients, torch.autograd.grad(expected, [hidden, weight]), rtol=1e-4, atol=1e-5)


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
