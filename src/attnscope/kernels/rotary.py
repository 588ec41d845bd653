"""Rotary positions (RoPE): queries and keys turn with their position, so that scores see the offset."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.support.errors import AttnscopeError


def rotation_rates(pairs: int, width: int, base: float = 10000.0) -> Float[Tensor, " pair"]:
    r"""Radians per token of each pair of columns: :math:`\omega_c = \text{base}^{-2c/\text{width}}`, float64."""
    return torch.exp(-torch.arange(pairs, dtype=torch.float64) * (2 / width) * math.log(base))


@dataclass(frozen=True, eq=False)
class Rotation:
    r"""Rotary positions (RoPE, Su et al. 2021): pair c of a query or key at position p turns by an angle.

    Two layouts of the pairs are in use, and mixing them up goes unseen: ``"half"`` pairs column c with column
    ``c + pairs``, ``"pairs"`` pairs ``2c`` with ``2c + 1``. They differ by `layout_permutation`. Columns beyond
    ``2 * pairs`` stay as they are (partial RoPE).

    Attributes
    ----------
    cos, sin
        ``(position, pair)``, multiplied by the model's own factor where it has one (YaRN).
    layout
        ``"half"`` or ``"pairs"``.
    """

    cos: Float[Tensor, "position pair"]
    sin: Float[Tensor, "position pair"]
    layout: str

    def __call__(self, x: Float[Tensor, "*batch position width"]) -> Float[Tensor, "*batch position width"]:
        """Turn each pair of dimensions by the angle of its position."""
        return self._turn(x, self.cos, self.sin)

    def at(self, x: Float[Tensor, "*batch token width"], start: int) -> Float[Tensor, "*batch token width"]:
        """Turn tokens of which the first stands at position `start`."""
        return replace(self, cos=self.cos[start:], sin=self.sin[start:])(x)

    def undo(self, x: Float[Tensor, "*batch position width"]) -> Float[Tensor, "*batch position width"]:
        """Turn back: what was there before the rotation (and before its factor)."""
        square = self.cos**2 + self.sin**2
        return self._turn(x, self.cos / square, -self.sin / square)

    def keep(self, pairs: Bool[Tensor, " pair"]) -> Rotation:
        """Return the rotation that turns these pairs only; the others keep the model's factor but not its angle."""
        factor = torch.sqrt(self.cos**2 + self.sin**2)
        return replace(self, cos=torch.where(pairs, self.cos, factor), sin=torch.where(pairs, self.sin, 0.0))

    @property
    def rates(self) -> Float[Tensor, " pair"]:
        """Radians per token of each pair, read off the first two positions, float64."""
        if self.cos.shape[0] < 2:  # noqa: PLR2004
            raise AttnscopeError("one position shows no rotation: give a window of 2 tokens or more")
        angle = torch.atan2(self.sin.double(), self.cos.double())
        return (angle[1] - angle[0]) % (2 * math.pi)

    @property
    def periods(self) -> Float[Tensor, " pair"]:
        """Tokens that each pair takes for one turn, float64; infinite where it does not turn."""
        return 2 * math.pi / self.rates

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        count = cos.shape[-1]
        length, width = x.shape[-2:]
        if length > cos.shape[0] or width < 2 * count:
            raise AttnscopeError(
                f"found {length} positions of width {width}; the rotation is for {cos.shape[0]} positions and at "
                f"least {2 * count} columns"
            )
        cos, sin = cos[:length].to(x.dtype), sin[:length].to(x.dtype)
        turned = x.clone()
        first, second = pair_columns(self.layout, count)
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., second] * cos + x[..., first] * sin
        return turned


def pair_columns(layout: str, count: int) -> tuple[slice, slice]:
    """First and second column of every pair."""
    if layout == "half":
        return slice(0, count), slice(count, 2 * count)
    return slice(0, 2 * count, 2), slice(1, 2 * count, 2)


def rotation(length: int, width: int, *, base: float = 10000.0, layout: str = "half", partial: float = 1.0) -> Rotation:
    r"""RoPE in its plain form: pair c turns by :math:`p\,\omega_c` at position p."""
    if layout not in {"half", "pairs"}:
        raise AttnscopeError(f"layout {layout!r} is not known: choose 'half' or 'pairs'")
    rotated = int(width * partial) // 2 * 2
    rates = rotation_rates(rotated // 2, max(1, rotated), base)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return Rotation(angles.cos(), angles.sin(), layout)


def layout_permutation(width: int) -> Int[Tensor, " width"]:
    """Columns of the ``"pairs"`` layout in the order of the ``"half"`` layout: ``half = pairs[..., permutation]``."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
