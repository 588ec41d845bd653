"""Which keys a query may see: all from a first to a last, or those that a mask with gaps leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.measure.quantities import SEVERAL, wording

if TYPE_CHECKING:
    from collections.abc import Iterator

    import xarray as xr
    from torch import Tensor

    from attnscope.kernels.call import AttentionCall


def without_gaps(call: AttentionCall) -> bool:
    """Whether each query may see all keys from a first to a last: those of `AttentionCall.extent`."""
    return call.is_contiguous and not bias_forbids(call)


def bias_forbids(call: AttentionCall) -> bool:
    """Whether a bias is so low somewhere that it is a mask."""
    return call.bias is not None and float(call.bias.amin()) <= torch.finfo(call.bias.dtype).min / 2


def keys_at(edges: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """The first key from each edge on, an offset, among those from `start` to `stop`, of each query: ``(...,
    edge)``.
    """
    own = torch.arange(start.shape[-1], device=edges.device)
    return torch.maximum(torch.minimum(own[:, None] + edges, stop[..., None]), start[..., None])


def allowed_by_rows(call: AttentionCall, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Which keys so many queries at a time may see, text by text, where a mask has gaps: of the first head."""
    queries = call.query.shape[2]
    for text in range(call.query.shape[0]):
        for begin in range(0, queries, rows):
            block = slice(begin, min(begin + rows, queries))
            allowed = call.allowed(text, 0, block)
            yield text, torch.arange(block.start, block.stop, device=allowed.device), allowed


def with_each(result: xr.Dataset) -> xr.Dataset:
    """The result with a statistic for each of several numbers of a head: ``block_recall_5``, ``weight_at_-64``."""
    apart: dict[str, xr.DataArray] = {}
    for dim in SEVERAL:
        for own in of_several(result, dim):
            for name in (own, f"equal_{own}"):
                for one in result[dim].values.tolist() if name in result else ():
                    each = f"{name}_{one}"
                    value = result[name].sel({dim: one}, drop=True).drop_attrs()
                    apart[each] = value.assign_attrs(wording(each).attributes)
    return result.assign(apart)


def of_several(result: xr.Dataset, dim: str) -> list[str]:
    """Names of the variables that are several numbers of a head, along that dimension."""
    return [
        str(name)
        for name, variable in result.data_vars.items()
        if {"layer", "head", dim} <= set(variable.dims) <= {"window", "layer", "head", dim}
    ]
