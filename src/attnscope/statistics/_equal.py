"""Equal weights over all that a token may see: what a head gives that knows of no place, the null of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Need, RowMeasures, segments
from attnscope.statistics._visible import allowed_by_rows, keys_at, without_gaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnscope.attention import AttentionCall

_ROWS = 512  # whose allowed keys are written out at once, where a mask has gaps


def equal_rows(call: AttentionCall, need: Need) -> RowMeasures:
    """Measure equal weights over the keys that each query of a call may see: ``(batch, 1, query)`` each.

    Only what has a null is measured: band, bins, columns and entropy. Heads with masks of their own share one answer,
    of the first head.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 4, 8)
    >>> from attnscope.attention import AttentionCall
    >>> rows = equal_rows(AttentionCall(x, x, x, scale=1.0, causal=True), Need(band=1, entropy=True))
    >>> rows.band[0, 0, :, 1].tolist()
    [1.0, 0.5, 0.3333333432674408, 0.25]
    """
    if without_gaps(call):
        return _of_extents(call, need)
    texts: list[list[RowMeasures]] = [[] for _ in call.query]
    for text, own, allowed in allowed_by_rows(call, _ROWS):
        texts[text].append(_of_allowed(need, text, own, allowed))
    return _joined([_joined(blocks, dim=2) for blocks in texts], dim=0)


def _of_extents(call: AttentionCall, need: Need) -> RowMeasures:
    """Arithmetic on the first and last key that each query may see."""
    start, stop = (bound.expand(len(call.query), -1) for bound in call.extent)
    count = stop - start
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    columns = None
    if need.columns is not None:
        before = torch.nn.functional.pad(need.columns.double().cumsum(1), (0, 0, 1, 0))
        first, last = (bound[..., None].expand(-1, -1, before.shape[-1]) for bound in (start, stop))
        columns = (before.gather(1, last) - before.gather(1, first)) * share[..., None]

    def within(edges: Tensor) -> Tensor:
        """Share of a row between each edge, an offset, and the next."""
        return keys_at(edges, start, stop).diff(dim=-1) * share[..., None]

    return _rows(need, count, share, within, columns)


def _of_allowed(need: Need, text: int, own: Tensor, seen: Tensor) -> RowMeasures:
    """The same of some queries from the keys that they may see, where a mask has gaps."""
    allowed = seen[None].double()
    count = allowed.sum(-1)
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    before = torch.nn.functional.pad(allowed.cumsum(-1), (1, 0))
    columns = None
    if need.columns is not None:
        columns = allowed @ need.columns[text : text + 1].double() * share[..., None]

    def within(edges: Tensor) -> Tensor:
        at = (own[:, None] + edges).clamp(0, allowed.shape[-1])[None]
        return before.gather(-1, at).diff(dim=-1) * share[..., None]

    return _rows(need, count, share, within, columns)


def _rows(
    need: Need, count: Tensor, share: Tensor, within: Callable[[Tensor], Tensor], columns: Tensor | None
) -> RowMeasures:
    band = bins = None
    if need.band is not None:
        band = within(torch.arange(-need.band, need.band + 2, device=count.device))
    if need.bins:
        sides = within(torch.from_numpy(segments(need.bins)).to(count.device))
        bins = torch.cat([sides[..., : len(need.bins)], sides[..., len(need.bins) + 1 :]], -1)
    entropy = count.clamp_min(1).double().log()
    return RowMeasures(
        log_sum_exp=entropy[:, None],
        mass=(share > 0).double()[:, None],
        entropy=entropy[:, None],
        band=None if band is None else band.float()[:, None],
        bins=None if bins is None else bins.float()[:, None],
        columns=None if columns is None else columns[:, None],
    )


def _joined(parts: list[RowMeasures], dim: int) -> RowMeasures:
    def of(name: str) -> Tensor | None:
        measures = [getattr(part, name) for part in parts]
        return None if measures[0] is None else torch.cat(measures, dim)

    names = ("log_sum_exp", "mass", "entropy", "band", "bins", "columns")
    return RowMeasures(**{name: of(name) for name in names})  # pyright: ignore[reportArgumentType]
