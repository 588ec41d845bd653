"""Effective attention of all heads of a layer, row by row, without its matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.explanation.profiles import pairs_at
from attnscope.intervention.contributions.record import value_outputs
from attnscope.intervention.session import band_of, values_of, visible_keys, weight_tiles
from attnscope.kernels.call import AttentionCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.intervention.contributions.record import Record

LEAST_TOLERANCE = 1e-6  # of singular values that are roots of eigenvalues in double precision
_ROWS_AT_ONCE = 64  # each with a matrix of its own
_ONES_WITHIN = 1e-8  # of the column of ones that lies outside the values' columns: less is rounding


class Effective:
    r"""Rows of :math:`A_\text{eff}`, by the Gram matrices of the values that each row sees."""

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.call, self.width = call, band
        value = call.value[0].double()  # (kv_head, key, r)
        self.values = value
        eps = torch.finfo(call.value.dtype).eps
        self.tolerance = max(2 * eps * min(value.shape[1:]) ** 0.5, LEAST_TOLERANCE)
        visible = visible_keys(call, 0)
        self.is_shared = bool((visible == visible[0]).all()) and (call.mask is None or call.mask.shape[1] == 1)
        self.seen = visible[:1].expand(len(value), -1, -1) if self.is_shared else None
        self.same = None if self.seen is None else self._inverted(self.seen)
        self.rows: dict[str, list[Tensor]] = {}

    def band(self, rows: slice, tile: Float[Tensor, "head row key"]) -> Float[Tensor, "head row offset"]:
        """Entries at offsets ``-band..band``; what `found` says is taken along."""
        if self.same is None and len(tile[0]) > _ROWS_AT_ONCE:
            parts = range(0, len(tile[0]), _ROWS_AT_ONCE)
            return torch.cat(
                [
                    self.band(slice(rows.start + at, min(rows.start + at + _ROWS_AT_ONCE, rows.stop)), part)
                    for at, part in zip(parts, tile.split(_ROWS_AT_ONCE, 1), strict=True)
                ],
                1,
            )
        seen = self._seen(rows)
        inverse, rank = self.same or self._inverted(seen)
        grouped = tile.double().unflatten(0, (-1, self.call.group))  # (kv_head, group, row, key)
        output = grouped @ self.values[:, None]  # (kv_head, group, row, r)
        through = (inverse[:, None] @ output[..., None])[..., 0]
        entries = through @ self.values[:, None].transpose(-2, -1) * seen[:, None]
        self._note(grouped, (output * through).sum(-1), seen, inverse, rank)
        return band_of(entries.flatten(0, 1), rows.start, self.width)

    def found(self) -> dict[str, np.ndarray]:
        """Means over rows, ``(head,)`` each: ``null_share``, ``null_share_permuted``, ``rank``, ``free_dimensions``;
        and ``identifiable``, the share of rows whose output determines the weights by dimension.
        """
        return {name: torch.cat(parts, -1).nanmean(-1).cpu().numpy() for name, parts in self.rows.items()}

    def _seen(self, rows: slice) -> Bool[Tensor, "kv_head some key"]:
        """Keys that each row may look at; one row, where all see the same."""
        heads, group = len(self.values), self.call.group
        if self.seen is not None:
            return self.seen
        if self.call.mask is None or self.call.mask.shape[1] == 1:
            return self.call.allowed(0, 0, rows).expand(heads, -1, -1)
        return torch.stack([self.call.allowed(0, head * group, rows) for head in range(heads)])

    def _inverted(
        self, seen: Bool[Tensor, "kv_head some key"]
    ) -> tuple[Float[Tensor, "kv_head some r r"], Int[Tensor, "kv_head some"]]:
        """Pseudo-inverse of each row's Gram matrix, and its rank."""
        width = self.values.shape[-1]
        if self.seen is not None:
            kept = self.values[:, self.seen[0, 0]]
            gram = (kept.transpose(-2, -1) @ kept)[:, None]
        else:
            products = (self.values[..., :, None] * self.values[..., None, :]).flatten(2)  # (kv_head, key, r * r)
            gram = (seen.double() @ products).unflatten(-1, (width, width))
        size, vectors = torch.linalg.eigh(gram)
        kept = size > self.tolerance**2 * size[..., -1:].clamp_min(1e-300)
        inverse = torch.where(kept, 1 / torch.where(kept, size, 1.0), 0.0)
        return (vectors * inverse[..., None, :]) @ vectors.transpose(-2, -1), kept.sum(-1)

    def _note(self, grouped: Tensor, kept: Tensor, seen: Tensor, inverse: Tensor, rank: Tensor) -> None:
        """What is said of each row: ``(kv_head, group, row)``."""
        power, total = (grouped**2).sum(-1), grouped.sum(-1)
        count = seen.sum(-1)[:, None].double()
        ones = seen.double() @ self.values
        within = (ones * (inverse @ ones[..., None])[..., 0]).sum(-1)[:, None]
        rank = rank[:, None].double()
        own = torch.where(count > 1, (power - total**2 / count) / (count - 1).clamp_min(1), power)
        common = torch.where(count > 1, (total**2 / count - own) / count, 0.0)
        permuted = own * rank + common * within
        one_more = (rank < count) & (within < (1 - _ONES_WITHIN) * count)
        free = count - rank - one_more.double()
        empty = power == 0
        for name, values in {
            "null_share": (1 - kept / power).clamp(0, 1).masked_fill(empty, torch.nan),
            "null_share_permuted": (1 - permuted / power).clamp(0, 1).masked_fill(empty, torch.nan),
            "rank": rank.expand_as(power),
            "free_dimensions": free.expand_as(power),
            "identifiable": (free == 0).double().expand_as(power),
        }.items():
            self.rows.setdefault(name, []).append(values.flatten(0, 1))


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
    """Let all of them read the weights of a layer once."""
    for rows, tile in weight_tiles(call):
        for reader in readers:
            reader.add(rows, tile)
    return {name: values for reader in readers for name, values in reader.found().items()}


class Profile:
    """Mean over rows of the entry at each offset, as `attnscope.scan` has it."""

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.band = band
        self.pairs = pairs_at(call.query.shape[2], call.key.shape[2], band)
        self.sums: Tensor | None = None

    def add(self, rows: slice, tile: Float[Tensor, "*head row key"]) -> None:
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
        self.profile.add(rows, tile)

    def found(self) -> dict[str, np.ndarray]:
        """``profile_weights``, ``(head, offset)``."""
        return {"profile_weights": self.profile.mean()}


class Norms:
    r"""Sizes :math:`\lVert\alpha_{ij}f(x_j)\rVert`, as shares of each row; W_O is known."""

    def __init__(self, record: Record, band: int) -> None:
        self.profile = Profile(record.call, band)
        self.size = value_outputs(record).norm(dim=-1)[:, None]

    def add(self, rows: slice, tile: Tensor) -> None:
        self.profile.add(rows, shares(tile * self.size.to(tile.dtype)))

    def found(self) -> dict[str, np.ndarray]:
        """``profile_norms``, ``(head, offset)``."""
        return {"profile_norms": self.profile.mean()}


class Gradient:
    r""":math:`(\nabla A\odot A)^+`, as shares of each row, and its mean over heads."""

    def __init__(self, record: Record, by_output: Float[Tensor, "head query value_width"], band: int) -> None:
        self.profile = Profile(record.call, band)
        self.values = values_of(record.call)[0]
        self.by_output = by_output.to(self.values.dtype)
        self.mean: list[Tensor] = []

    def add(self, rows: slice, tile: Tensor) -> None:
        kept = (tile * (self.by_output[:, rows] @ self.values.transpose(-2, -1))).clamp_min(0.0)
        self.profile.add(rows, shares(kept))
        self.mean.append(kept.mean(0))

    def matrix(self) -> Float[Tensor, "query key"]:
        return torch.cat(self.mean)

    def found(self) -> dict[str, np.ndarray]:
        """``profile_gradient``, ``(head, offset)``."""
        return {"profile_gradient": self.profile.mean()}


class Mean:
    """Mean over heads, which is held whole."""

    def __init__(self) -> None:
        self.mean: list[Tensor] = []

    def add(self, rows: slice, tile: Tensor) -> None:  # noqa: ARG002 as other readers do
        self.mean.append(tile.mean(0))

    def matrix(self) -> Float[Tensor, "query key"]:
        return torch.cat(self.mean)

    def found(self) -> dict[str, np.ndarray]:
        return {}


class EffectiveProfile:
    """What of the weights the output can see, and how far it determines them."""

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.profile = Profile(call, band)
        self.effective = Effective(call, band)

    def add(self, rows: slice, tile: Tensor) -> None:
        self.profile.add_band(self.effective.band(rows, tile))

    def found(self) -> dict[str, np.ndarray]:
        """``profile_effective``, ``(head, offset)``, and ``(head,)`` each what `Effective.found` gives."""
        return {"profile_effective": self.profile.mean()} | self.effective.found()


def shares(matrix: Float[Tensor, "*head row key"]) -> Float[Tensor, "*head row key"]:
    """Rows that sum to 1; rows of zeros stay."""
    total = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(total > 0, total, 1.0)
