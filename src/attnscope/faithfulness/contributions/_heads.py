"""Profiles of each head's weights: as they are, by the size of what they weigh, by what is seen of them, by gradient.

Each class reads the weights of one layer some rows at a time, and keeps nothing that grows with their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.faithfulness._calls import band_of, values_of, weight_tiles
from attnscope.faithfulness.contributions._effective import Effective
from attnscope.faithfulness.contributions._record import given_by_heads
from attnscope.mechanism.evidence import pairs_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.faithfulness.contributions._record import Record


@runtime_checkable  # types are checked in tests
class Reader(Protocol):
    """What reads the weights of a layer, ``(head, row, key)`` at a time."""

    def add(self, rows: slice, tile: Tensor) -> None:
        """Read some rows."""
        ...

    def found(self) -> dict[str, np.ndarray]:
        """What was found, by the names of variables."""
        ...


def read_weights(call: AttentionCall, readers: Sequence[Reader]) -> dict[str, np.ndarray]:
    """Let all of them read the weights of a layer once.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> call = AttentionCall(x, x, x, scale=1.0)
    >>> {name: one.shape for name, one in read_weights(call, [Weights(call, 1)]).items()}
    {'profile_weights': (1, 3)}
    """
    for rows, tile in weight_tiles(call):
        for reader in readers:
            reader.add(rows, tile)
    return {name: values for reader in readers for name, values in reader.found().items()}


class Profile:
    """Mean over rows of the entry at each offset, as `attnscope.scan` has it.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> profile = Profile(AttentionCall(x, x, x, scale=1.0), 1)
    >>> profile.add(slice(0, 3), torch.eye(3)[None])
    >>> profile.mean().tolist()
    [[0.0, 1.0, 0.0]]
    """

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.band = band
        self.pairs = pairs_at(call.query.shape[2], call.key.shape[2], band)
        self.sums: Tensor | None = None

    def add(self, rows: slice, tile: Float[Tensor, "*head row key"]) -> None:
        """Add some rows."""
        self.add_band(band_of(tile, rows.start, self.band))

    def add_band(self, entries: Float[Tensor, "*head row offset"]) -> None:
        """Add some rows of which only the entries near the diagonal are there."""
        summed = entries.double().sum(-2)
        self.sums = summed if self.sums is None else self.sums + summed

    def mean(self) -> Float[np.ndarray, "*head offset"]:
        """NaN at offsets that no row has."""
        assert self.sums is not None  # noqa: S101 a text has rows
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.pairs > 0, self.sums.cpu().numpy() / self.pairs, np.nan)


class Weights:
    """The weights themselves."""

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.profile = Profile(call, band)

    def add(self, rows: slice, tile: Tensor) -> None:
        """Read some rows."""
        self.profile.add(rows, tile)

    def found(self) -> dict[str, np.ndarray]:
        """``profile_weights``, ``(head, offset)``."""
        return {"profile_weights": self.profile.mean()}


class Norms:
    r"""Sizes :math:`\lVert\alpha_{ij}f(x_j)\rVert`, as shares of each row; W_O is known."""

    def __init__(self, record: Record, band: int) -> None:
        self.profile = Profile(record.call, band)
        self.size = given_by_heads(record).norm(dim=-1)[:, None]

    def add(self, rows: slice, tile: Tensor) -> None:
        """Read some rows."""
        self.profile.add(rows, shares(tile * self.size.to(tile.dtype)))

    def found(self) -> dict[str, np.ndarray]:
        """``profile_norms``, ``(head, offset)``."""
        return {"profile_norms": self.profile.mean()}


class Gradient:
    r""":math:`(\nabla A\odot A)^+`, as shares of each row, and its mean over heads.

    The gradient of a weight is :math:`\partial y/\partial A_{ij} = \partial y/\partial o_i\cdot v_j`: that by the
    output of a head is enough.
    """

    def __init__(self, record: Record, by_output: Float[Tensor, "head query value_width"], band: int) -> None:
        self.profile = Profile(record.call, band)
        self.values = values_of(record.call)[0]
        self.by_output = by_output.to(self.values.dtype)
        self.mean: list[Tensor] = []

    def add(self, rows: slice, tile: Tensor) -> None:
        """Read some rows."""
        kept = (tile * (self.by_output[:, rows] @ self.values.transpose(-2, -1))).clamp_min(0.0)
        self.profile.add(rows, shares(kept))
        self.mean.append(kept.mean(0))

    def matrix(self) -> Float[Tensor, "query key"]:
        """Mean over heads."""
        return torch.cat(self.mean)

    def found(self) -> dict[str, np.ndarray]:
        """``profile_gradient``, ``(head, offset)``."""
        return {"profile_gradient": self.profile.mean()}


class Mean:
    """Mean over heads, which is held whole."""

    def __init__(self) -> None:
        self.mean: list[Tensor] = []

    def add(self, rows: slice, tile: Tensor) -> None:  # noqa: ARG002 as other readers do
        """Read some rows."""
        self.mean.append(tile.mean(0))

    def matrix(self) -> Float[Tensor, "query key"]:
        """Mean over heads."""
        return torch.cat(self.mean)

    def found(self) -> dict[str, np.ndarray]:
        """Nothing by itself."""
        return {}


class EffectiveProfile:
    """What of the weights the output can see, and how far it determines them."""

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.profile = Profile(call, band)
        self.effective = Effective(call, band)

    def add(self, rows: slice, tile: Tensor) -> None:
        """Read some rows."""
        self.profile.add_band(self.effective.band(rows, tile))

    def found(self) -> dict[str, np.ndarray]:
        """``profile_effective``, ``(head, offset)``, and ``(head,)`` each what `Effective.found` gives."""
        return {"profile_effective": self.profile.mean()} | self.effective.found()


def shares(matrix: Float[Tensor, "*head row key"]) -> Float[Tensor, "*head row key"]:
    """Rows that sum to 1; rows of zeros stay.

    Examples
    --------
    >>> shares(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(total > 0, total, 1.0)
