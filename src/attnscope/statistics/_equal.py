"""Equal weights over all that a token may see: what a head gives that knows of no place, the null of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.attention import Need, RowMeasures, segments

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
    if call.is_contiguous and not bias_forbids(call):
        return _of_extents(call, need)
    queries = call.query.shape[2]
    texts: list[RowMeasures] = []
    for text in range(call.query.shape[0]):
        blocks = [
            _of_allowed(call, need, text, range(first, min(first + _ROWS, queries)))
            for first in range(0, queries, _ROWS)
        ]
        texts.append(_joined(blocks, dim=2))
    return _joined(texts, dim=0)


def bias_forbids(call: AttentionCall) -> bool:
    """Whether a bias is so low somewhere that it is a mask.

    Examples
    --------
    >>> from attnscope.attention import AttentionCall
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> bias_forbids(AttentionCall(x, x, x, scale=1.0, bias=torch.tensor([[[[0.0, -torch.inf], [0.0, 0.0]]]])))
    True
    """
    return call.bias is not None and float(call.bias.amin()) <= torch.finfo(call.bias.dtype).min / 2


def _of_extents(call: AttentionCall, need: Need) -> RowMeasures:
    """Arithmetic on the first and last key that each query may see."""
    batch, _, queries, _ = call.query.shape
    start, stop = (bound.expand(batch, -1) for bound in call.extent)
    count = stop - start
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    own = torch.arange(queries, device=start.device)
    columns = None
    if need.columns is not None:
        before = torch.nn.functional.pad(need.columns.double().cumsum(1), (0, 0, 1, 0))
        first, last = (bound[..., None].expand(-1, -1, before.shape[-1]) for bound in (start, stop))
        columns = (before.gather(1, last) - before.gather(1, first)) * share[..., None]

    def within(edges: Tensor) -> Tensor:
        """Share of a row between each edge, an offset, and the next."""
        at = torch.maximum(torch.minimum(own[:, None] + edges, stop[..., None]), start[..., None])
        return at.diff(dim=-1) * share[..., None]

    return _rows(need, count, share, within, columns)


def _of_allowed(call: AttentionCall, need: Need, text: int, block: range) -> RowMeasures:
    """The same from the allowed keys themselves, where a mask has gaps."""
    allowed = call.allowed(text, 0, slice(block.start, block.stop))[None].double()
    count = allowed.sum(-1)
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    before = torch.nn.functional.pad(allowed.cumsum(-1), (1, 0))
    own = torch.arange(block.start, block.stop, device=allowed.device)
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
