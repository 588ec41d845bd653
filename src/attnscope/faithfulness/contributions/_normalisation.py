"""A normalisation as a linear map: found by what it gives, whatever its class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

#: Largest difference of two computations of one number, as a share of the largest. Many models normalise in single
#: precision whatever their own is.
ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(frozen=True, eq=False)
class LinearNorm:
    r"""What a normalisation does once the size of what it reads is known.

    :math:`y = \gamma\odot(z - \bar z)/s + \beta`, without the mean in RMSNorm.

    Attributes
    ----------
    is_centred
        Whether the mean is taken away.
    gain, shift
        :math:`\gamma` and :math:`\beta`, ``(width,)``.

    Examples
    --------
    >>> norm = nn.LayerNorm(4).requires_grad_(False)
    >>> z = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    >>> norm_of = fitted(norm, z, norm(z))
    >>> norm_of.is_centred, bool(torch.allclose(norm_of.of(z) * norm_of.scale(z, norm(z)), norm(z)))
    (True, True)
    """

    is_centred: bool
    gain: Float[Tensor, " width"]
    shift: Float[Tensor, " width"]

    def of(self, part: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """A summand of what is normalised, before the division."""
        wide = part.to(self.gain.dtype)
        return (wide - wide.mean(-1, keepdim=True) if self.is_centred else wide) * self.gain

    def scale(
        self, given: Float[Tensor, "*any width"], returned: Float[Tensor, "*any width"]
    ) -> Float[Tensor, "*any 1"]:
        """1/s of each row: what makes of the one the other, by least squares."""
        made, wanted = self.of(given), returned.to(self.gain.dtype) - self.shift
        power = (made * made).sum(-1, keepdim=True)
        return (made * wanted).sum(-1, keepdim=True) / torch.where(power > 0, power, 1.0)


def fitted(
    module: nn.Module, given: Float[Tensor, "*any width"], returned: Float[Tensor, "*any width"]
) -> LinearNorm | None:
    """The linear map behind a normalisation, of its parameters, if one gives what it gave; None if none does."""
    limit = ROUNDING.get(returned.dtype, 2e-5)
    for norm in _candidates(module, given):
        made = norm.of(given) * norm.scale(given, returned) + norm.shift
        if float((made - returned).abs().max()) <= limit * float(returned.abs().max()):
            return norm
    return None


def _candidates(module: nn.Module, given: Tensor) -> Iterator[LinearNorm]:
    wide = torch.promote_types(given.dtype, torch.float32)
    width = given.shape[-1]
    own = [parameter.detach().to(wide) for parameter in module.parameters() if parameter.shape == (width,)]
    ones, zero = (torch.full((width,), float(value), dtype=wide, device=given.device) for value in (1, 0))
    for is_centred in (True, False):
        for gain in (*own, *(ones + each for each in own), ones):  # Gemma's weight is what is added to 1
            for shift in (zero, *own):
                yield LinearNorm(is_centred, gain, shift)
