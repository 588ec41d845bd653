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
    """Whether a bias is so low somewhere that it is a mask.

    Examples
    --------
    >>> from attnscope.kernels import AttentionCall
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> bias_forbids(AttentionCall(x, x, x, scale=1.0, bias=torch.tensor([[[[0.0, -torch.inf], [0.0, 0.0]]]])))
    True
    """
    return call.bias is not None and float(call.bias.amin()) <= torch.finfo(call.bias.dtype).min / 2


def keys_at(edges: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """The first key from each edge on, an offset, among those from `start` to `stop`, of each query: ``(..., edge)``.

    Examples
    --------
    >>> start, stop = torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3])
    >>> keys_at(torch.tensor([-1, 0, 1]), start, stop).tolist()
    [[0, 0, 1], [0, 1, 2], [1, 2, 3]]
    """
    own = torch.arange(start.shape[-1], device=edges.device)
    return torch.maximum(torch.minimum(own[:, None] + edges, stop[..., None]), start[..., None])


def allowed_by_rows(call: AttentionCall, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Which keys so many queries at a time may see, text by text, where a mask has gaps: of the first head.

    Yields
    ------
    tuple
        The text's number, those of its queries ``(query,)`` and which keys they may see ``(query, key)``.
    """
    queries = call.query.shape[2]
    for text in range(call.query.shape[0]):
        for begin in range(0, queries, rows):
            block = slice(begin, min(begin + rows, queries))
            allowed = call.allowed(text, 0, block)
            yield text, torch.arange(block.start, block.stop, device=allowed.device), allowed


def with_each(result: xr.Dataset) -> xr.Dataset:
    """The result with a statistic for each of several numbers of a head: ``block_recall_5``, ``weight_at_-64``.

    For tables and comparisons, which have one column or line for each statistic.

    Parameters
    ----------
    result
        A scan.

    Examples
    --------
    >>> import xarray as xr
    >>> recall = xr.DataArray([[[0.5, 0.75]]], dims=("layer", "head", "kept"), coords={"kept": [5, 10]})
    >>> list(with_each(xr.Dataset({"block_recall": recall})))
    ['block_recall', 'block_recall_5', 'block_recall_10']
    """
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
    """Names of the variables that are several numbers of a head, along that dimension.

    For what draws or lists them: such a variable has a curve for each head, where others have a number.

    Parameters
    ----------
    result
        A scan.
    dim
        One of `SEVERAL`.

    Examples
    --------
    >>> import xarray as xr
    >>> of_several(xr.Dataset({"block_recall": (("layer", "head", "kept"), [[[0.5, 0.75]]])}), "kept")
    ['block_recall']
    """
    return [
        str(name)
        for name, variable in result.data_vars.items()
        if {"layer", "head", dim} <= set(variable.dims) <= {"text", "layer", "head", dim}
    ]
