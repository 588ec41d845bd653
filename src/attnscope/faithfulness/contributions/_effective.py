"""Effective attention of all heads of a layer, row by row, without its matrix."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.faithfulness._calls import band_of, visible_keys

LEAST_TOLERANCE = 1e-6  # of singular values that are roots of eigenvalues in double precision
_ROWS_AT_ONCE = 64  # each with a matrix of its own
_ONES_WITHIN = 1e-8  # of the column of ones that lies outside the values' columns: less is rounding


class Effective:
    r"""Rows of :math:`A_\text{eff}`, by the Gram matrices of the values that each row sees.

    With :math:`G_i` the sum of :math:`v_j v_j^\top` over the keys that query i may see, :math:`A_{\text{eff},ij} = o_i
    G_i^+ v_j` and :math:`\lVert A_{\text{eff},i}\rVert^2 = o_i G_i^+ o_i^\top`. Where all rows see the same keys there
    is one such matrix; behind a causal mask each row has its own, which is what this costs. Singular values up to
    ``2 eps sqrt(min(n, d_v))`` of the largest, or a millionth, count as zero. Heads that share keys share the mask.

    Examples
    --------
    >>> x = torch.randn(1, 1, 9, 2, generator=torch.Generator().manual_seed(0))
    >>> effective = Effective(AttentionCall(x, x, x, scale=1.0), 1)
    >>> effective.band(slice(0, 9), torch.full((1, 9, 9), 1 / 9)).shape
    torch.Size([1, 9, 3])
    >>> {name: values.round(6).tolist() for name, values in effective.found().items() if name != "null_share"}
    {'null_share_permuted': ...'rank': [2.0], 'free_dimensions': [6.0], 'identifiable': [0.0]}
    """

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.call, self.width = call, band
        value = call.value[0].double()  # (kv_head, key, r)
        self.values = value
        eps = torch.finfo(call.value.dtype).eps
        self.tolerance = max(2 * eps * min(value.shape[1:]) ** 0.5, LEAST_TOLERANCE)
        visible = visible_keys(call, 0)
        self.is_shared = bool((visible == visible[0]).all()) and (
            call.mask is None or call.mask.shape[1] == 1
        )
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
        and ``identifiable``, the share of rows whose output determines the weights by dimension."""  # noqa: D209
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
            products = (self.values[..., :, None] * self.values[..., None, :]).flatten(
                2
            )  # (kv_head, key, r * r)
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
