"""How what the keys receive is shared out among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def top(received: Tensor, count: int) -> Tensor:
    """Share of all weight on the keys that receive most, so many of them: ``(batch, head)``; NaN if there is none.

    Examples
    --------
    >>> import torch
    >>> round(top(torch.tensor([[[1.0, 5.0, 2.0]]]), 2).item(), 3)
    0.875
    """
    return _shares(received).topk(min(count, received.shape[-1])).values.sum(-1)


def effective(received: Tensor) -> Tensor:
    """Effective number of keys, exp of the entropy of what they receive: ``(batch, head)``.

    Examples
    --------
    >>> import torch
    >>> round(effective(torch.tensor([[[2.0, 2.0, 0.0]]])).item(), 6)
    2.0
    """
    shares = _shares(received)
    return shares.xlogy(shares).sum(-1).neg().exp()


def _shares(received: Tensor) -> Tensor:
    return received / received.sum(-1, keepdim=True)
