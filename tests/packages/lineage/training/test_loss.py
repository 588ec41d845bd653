"""R-Drop's loss against its formula and autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from attnscope_lineage import loss as _loss
from attnscope_lineage.loss import smoothed_cross_entropy

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
