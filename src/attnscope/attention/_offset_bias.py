"""A bias that depends on the offset alone, and is written out only where something reads its entries."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils._pytree import tree_map_only

from attnscope.attention._row_mask import ATEN, OF_MEMORY
from attnscope.errors import AttnscopeError


class OffsetBias(Tensor):
    r"""A bias ``(..., query, key)`` with one number for each offset, :math:`b_{ij} = v_{j - i + n - 1}` of n queries.

    It is a tensor to whoever works with it; what is made of it is made of the whole matrix, which is written out for
    that. Some of its texts, heads, queries and keys are again of this kind, and an `AttentionCall` with such a bias is
    measured tile by tile, so that queries by keys are never in memory.

    Parameters
    ----------
    by_offset
        ``(..., queries + keys - 1)``: the number at each offset key - query, both counted from 0, from
        ``-(queries - 1)`` to ``keys - 1``. Where the last query stands at the last key (a cache holds earlier keys),
        the place of a query is its number plus ``keys - queries``: `RelativeBias.by_offset` and `alibi_by_offset` give
        their numbers so.
    queries
        How many queries there are.

    Raises
    ------
    AttnscopeError
        If there are fewer numbers than queries; if a gradient is to pass through it, or something is to be written into
        it: neither can be.

    Examples
    --------
    >>> bias = OffsetBias(torch.tensor([[[-2.0, -1.0, 0.0, 1.0]]]), queries=2)
    >>> bias.shape, bias[0, 0].tolist()
    (torch.Size([1, 1, 2, 3]), [[-1.0, 0.0, 1.0], [-2.0, -1.0, 0.0]])
    >>> bias[..., 1:, :2].by_offset.tolist()
    [[[-2.0, -1.0]]]
    """

    by_offset: Tensor

    @staticmethod
    def __new__(  # noqa: PYI034 a class that is checked at run time knows no Self
        cls: type[OffsetBias], by_offset: Shaped[Tensor, "*texts_and_heads offset"], queries: int
    ) -> OffsetBias:
        keys = by_offset.shape[-1] - queries + 1
        if queries < 1 or keys < 1:
            raise AttnscopeError(
                f"found {by_offset.shape[-1]} numbers for {queries} queries; expected queries + keys - 1, of at least "
                "one query and one key"
            )
        if by_offset.requires_grad and torch.is_grad_enabled():
            raise AttnscopeError(
                "a bias by offset passes no gradient on: detach its numbers, or write the bias out for each pair"
            )
        shape = (*by_offset.shape[:-1], queries, keys)
        with torch.inference_mode(mode=False):  # where views of this have to be ordinary tensors, too
            made = Tensor._make_wrapper_subclass(cls, shape, dtype=by_offset.dtype, device=by_offset.device)  # noqa: SLF001
            by_offset = by_offset.detach() if by_offset.requires_grad else by_offset
            made.by_offset = by_offset.clone() if by_offset.is_inference() else by_offset
        return made

    @property
    def upside_down(self) -> Tensor:
        """The last query first, ``(..., query, key)``: a view of the few numbers, each row one further on."""
        return self.by_offset.unfold(-1, self.shape[-1], 1)

    def written(self) -> Tensor:
        """Write it out as any other tensor."""
        return self.upside_down.flip(-2).contiguous()  # rows that overlap may come out as columns

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in OF_MEMORY:
            args = (args[0].written(), *args[1:])
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        shares_memory = _shares_memory(func, args, kwargs)
        with torch.inference_mode(mode=False) if shares_memory else nullcontext():
            bias = args[0] if args else None
            if isinstance(bias, OffsetBias):
                if func in _EACH and _are_alike(bias, args):
                    numbers: Any = tree_map_only(OffsetBias, lambda one: one.by_offset, args)
                    return OffsetBias(func(*numbers, **kwargs), bias.shape[-2])
                if func in _PARTS:
                    part = _PARTS[func](bias, *args[1:], **kwargs)
                    if part is not None:
                        return part
            made = func.decompose(*args, **kwargs)  # of other functions, which come whole in inference mode
            if made is not NotImplemented:
                return made
            args, options = tree_map_only(OffsetBias, OffsetBias.written, (args, kwargs))
            return func(*args, **options)


def _are_alike(bias: OffsetBias, args: tuple[Any, ...]) -> bool:
    """Whether all that is worked on is known by its offsets."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    return all(isinstance(one, OffsetBias) and one.shape == bias.shape for one in tensors)


def _shares_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it would give a view of a bias of this kind; to write into one is refused."""
    shares = False
    for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        given = args[number] if number < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and isinstance(given, OffsetBias):
            if argument.alias_info.is_write:
                raise AttnscopeError(
                    "a bias by offset cannot be written into: write into what .written() gives"
                )
            shares = True
    return shares


#: What is done with each number for itself
_EACH = {
    ATEN.alias.default,
    ATEN.detach.default,
    ATEN.clone.default,
    ATEN._to_copy.default,  # noqa: SLF001
    ATEN.le.Scalar,
    ATEN.gt.Scalar,
    ATEN.masked_fill.Scalar,
}


def _selected(bias: OffsetBias, dim: int, index: int) -> Tensor | None:
    """One text or head, or what one query or key has."""
    lead = bias.ndim - 2
    dim, queries = dim % bias.ndim, bias.shape[-2]
    if dim < lead:
        return OffsetBias(bias.by_offset.select(dim, index), queries)
    if dim == lead:
        return bias.upside_down.select(-2, queries - 1 - index % queries).clone()
    return bias.upside_down.select(-1, index).flip(-1)


def _cut(
    bias: OffsetBias, dim: int = 0, first: int | None = None, last: int | None = None, step: int = 1
) -> OffsetBias | None:
    """Some texts or heads; queries or keys that follow each other."""
    lead = bias.ndim - 2
    dim %= bias.ndim
    taken = slice(first, last, step)
    queries, keys = bias.shape[-2:]
    if dim < lead:
        return OffsetBias(bias.by_offset[(slice(None),) * dim + (taken,)], queries)
    low, high, _ = taken.indices(bias.shape[dim])
    if step != 1 or high <= low:
        return None
    if dim == lead:
        return OffsetBias(bias.by_offset[..., queries - high : queries - low + keys - 1], high - low)
    return OffsetBias(bias.by_offset[..., low : high + queries - 1], queries)


def _expanded(bias: OffsetBias, sizes: list[int], **_: bool) -> OffsetBias | None:
    """The same for more texts or heads."""
    whole = [own if size == -1 else size for own, size in zip(bias.shape[-2:], sizes[-2:], strict=True)]
    if whole != list(bias.shape[-2:]):
        return None
    return OffsetBias(bias.by_offset.expand(*sizes[:-2], -1), bias.shape[-2])


def _viewed(bias: OffsetBias, sizes: list[int]) -> OffsetBias | None:
    """Texts and heads in other dimensions."""
    if list(sizes[-2:]) != list(bias.shape[-2:]):
        return None
    return OffsetBias(bias.by_offset.view(*sizes[:-2], bias.by_offset.shape[-1]), bias.shape[-2])


def _unsqueezed(bias: OffsetBias, dim: int) -> OffsetBias | None:
    dim %= bias.ndim + 1
    return OffsetBias(bias.by_offset.unsqueeze(dim), bias.shape[-2]) if dim <= bias.ndim - 2 else None


def _diagonal(bias: OffsetBias, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor | None:
    """The number at one offset, as often as there are pairs."""
    if (dim1 % bias.ndim, dim2 % bias.ndim) != (bias.ndim - 2, bias.ndim - 1):
        return None
    queries, keys = bias.shape[-2:]
    pairs = min(queries, keys - offset) - max(0, -offset)
    if pairs <= 0:
        return bias.by_offset[..., :0]
    return bias.by_offset[..., offset + queries - 1, None].expand(*bias.shape[:-2], pairs)


def _numbered(bias: OffsetBias, indices: list[Tensor | None]) -> Tensor | None:
    """Queries by their numbers, and texts, heads and keys beside them: so many rows, and no others, are made."""
    lead = bias.ndim - 2
    there = [index for index in indices if index is not None]
    if len(indices) <= lead or indices[lead] is None or any(not _is_number(index) for index in there):
        return None
    rows, queries = cast("Tensor", indices[lead]), bias.shape[-2]
    turned = [*indices[:lead], queries - 1 - rows % queries, *indices[lead + 1 :]]
    return ATEN.index.Tensor(bias.upside_down, turned)


def _is_number(index: Tensor) -> bool:
    return index.dtype not in {torch.bool, torch.uint8}


def _gathered(bias: OffsetBias, dim: int, index: Tensor, **_: bool) -> Tensor | None:
    """Some keys of each query."""
    if dim % bias.ndim != bias.ndim - 1 or index.shape[:-1] != bias.shape[:-1]:
        return None
    return bias.upside_down.gather(-1, index.flip(-2)).flip(-2)


def _least(bias: OffsetBias, dim: list[int] | None = None, keepdim: bool = False) -> Tensor | None:
    """Of all, of which each offset has one."""
    return None if dim or keepdim else bias.by_offset.amin()


_PARTS: dict[Any, Any] = {
    ATEN.amin.default: _least,
    ATEN.select.int: _selected,
    ATEN.slice.Tensor: _cut,
    ATEN.expand.default: _expanded,
    ATEN.view.default: _viewed,
    ATEN.unsqueeze.default: _unsqueezed,
    ATEN.diagonal.default: _diagonal,
    ATEN.index.Tensor: _numbered,
    ATEN.gather.default: _gathered,
}
