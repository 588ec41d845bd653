"""The keys that a mask allows: first and last key of each row, without a matrix of queries by keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map_only

from attnscope.support.errors import AttnscopeError

Part = Callable[[Tensor], Tensor]

#: Entries of a mask that are inspected at once; larger masks are inspected in blocks of rows.
MASK_ENTRIES = 1 << 19


def forbids(bias: Shaped[Tensor, ...]) -> Bool[Tensor, ...]:
    """Where a bias masks a key: at -inf, or about the lowest number of its type (see `with_masked_keys`)."""
    return bias <= torch.finfo(bias.dtype).min / 2


class Extent(NamedTuple):
    """First allowed key and end of each query, and whether all keys between are allowed."""

    start: Int[Tensor, "batch query"]
    stop: Int[Tensor, "batch query"]
    is_contiguous: bool


def extent_of(mask: Bool[Tensor, "batch head query key"]) -> Extent:
    """First and last-plus-one allowed key of each query, and whether all keys between are allowed."""
    if isinstance(mask, RowMask) and isinstance(mask := mask.settled(), RowMask):
        return Extent(mask.start, mask.stop, is_contiguous=True)
    batch, heads, queries, keys = mask.shape
    return extent_by_rows(lambda rows: mask[:, :, rows], queries, batch * heads * keys)


def extent_by_rows(written: Callable[[slice], Bool[Tensor, "batch head some key"]], queries: int, cells: int) -> Extent:
    """Find the `extent_of` a mask that is never in memory whole: ``written(rows)`` returns some rows."""
    step = max(1, MASK_ENTRIES // max(1, cells))
    parts = [_bounds(written(slice(at, min(at + step, queries)))) for at in range(0, max(1, queries), step)]
    start, stop = (torch.cat(bounds, 1) for bounds in ([part[side] for part in parts] for side in (0, 1)))
    # once, not for each part: on CUDA each answer would be a synchronisation
    return Extent(start, stop, bool(torch.stack([part[2] for part in parts]).all()))


def transposed(mask: Shaped[Tensor, "batch head query key"]) -> Shaped[Tensor, "batch head key query"]:
    """A mask or bias with keys as queries; the mask stays a `RowMask` where its rows have no gaps."""
    if not isinstance(mask, RowMask) or not mask.is_known:
        return mask.mT
    start, stop, keys = mask.start[:, None, None], mask.stop[:, None, None], mask.shape[-1]
    index = torch.arange(keys, device=start.device)[:, None]
    extent = extent_by_rows(
        lambda some: (index[some] >= start) & (index[some] < stop), keys, start.shape[0] * start.shape[-1]
    )
    return RowMask(extent.start, extent.stop, start.shape[-1]) if extent.is_contiguous else mask.mT


def _bounds(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and last-plus-one key of some rows, and whether all heads allow all keys between."""
    keys, bits = mask.shape[-1], mask.view(torch.uint8)  # a view: only numbers have a largest one
    count = bits.sum(-1)
    # argmax gives the first of equal numbers: the first allowed key, and from the other side the last
    start = torch.where(count > 0, bits.argmax(-1), 0)
    stop = torch.where(count > 0, keys - bits.flip(-1).argmax(-1), 0)
    return start.amin(1), stop.amax(1), (stop - start == count).all() & (mask.shape[1] == 1)


ATEN = torch.ops.aten
_MARKS = {torch.bool, torch.uint8}  # types of indices that are not numbers


class RowMask(Tensor):
    """A boolean mask ``(batch, 1, query, key)`` each of whose rows allows one contiguous range of keys."""

    # ``(batch, query)``: the first allowed key, and the one after the last; equal where nothing is allowed
    start: Tensor
    stop: Tensor
    _whole: Tensor | None
    _seen_in: tuple[RowMask, Callable[[Tensor], Tensor]] | None

    @staticmethod
    def __new__(  # noqa: PYI034 a class that is checked at run time knows no Self
        cls: type[RowMask], start: Int[Tensor, "batch query"], stop: Int[Tensor, "batch query"], keys: int
    ) -> RowMask:
        shape = (len(start), 1, start.shape[1], keys)
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=start.device)  # noqa: SLF001
        # a wrapper: its shape is that of the mask, its memory that of two numbers a query
        made.start, made.stop = start, stop
        made._whole = made._seen_in = None  # noqa: SLF001
        return made

    @property
    def is_known(self) -> bool:
        """Whether `start` and `stop` describe the mask: not after it is written out, for then it may be changed."""
        return self._whole is None if self._seen_in is None else self._seen_in[0].is_known

    def written(self, *, keep: bool = False) -> Tensor:
        """Write it out as an ordinary tensor; with `keep`, the mask is that tensor from then on."""
        if self._seen_in is not None and (keep or not self.is_known):
            whole, part = self._seen_in
            return part(whole.written(keep=True))
        if self._whole is not None:
            return self._whole
        index = torch.arange(self.shape[-1], device=self.start.device)
        # in place below: such a matrix can be the largest of a pass
        allowed = index >= self.start[:, None, :, None]
        allowed &= index < self.stop[:, None, :, None]
        if keep:
            self._whole = allowed
        return allowed

    def settled(self) -> Tensor:
        """The mask where its rows describe it, otherwise its tensor."""
        return self if self.is_known else self.written()

    def taken(self, queries: Int[Tensor, "_ row"]) -> RowMask:
        """Some queries of each text by index."""
        start, stop = (bound.expand(len(queries), -1).gather(1, queries) for bound in (self.start, self.stop))
        return RowMask(start, stop, self.shape[-1])

    def some(self, start: Tensor, stop: Tensor, keys: int, part: Callable[[Tensor], Tensor]) -> RowMask:
        """A part of this mask, which changes when the whole is written to."""
        chosen = RowMask(start, torch.maximum(start, stop), keys)
        chosen._seen_in = self, part
        return chosen

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in OF_MEMORY:
            args = (args[0].written(keep=True), *args[1:])
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        mask = args[0] if args else None
        if isinstance(mask, RowMask) and mask.is_known and func in _PARTS:
            rest, named = args[1:], kwargs
            part = _PARTS[func](mask, lambda whole: func(whole, *rest, **named), *rest, **named)
            if part is not None:
                return part
        # operations that write to the mask, or share its memory, need a tensor that stays
        keep = any(argument.alias_info is not None for argument in func._schema.arguments)  # noqa: SLF001
        args, options = tree_map_only(RowMask, lambda mask: mask.written(keep=keep), (args, kwargs))
        return func(*args, **options)


#: Accessors of a tensor's memory, which a mask that is not written out lacks
OF_MEMORY = {
    *(Tensor.numpy, Tensor.tolist, Tensor.data_ptr, Tensor.untyped_storage, Tensor.__array__, Tensor.__dlpack__),
    *(Tensor.__deepcopy__, Tensor.__reduce_ex__, Tensor.__repr__),
}


def _same(mask: RowMask, part: Part) -> RowMask:
    return mask.some(mask.start, mask.stop, mask.shape[-1], part)


def _cut(
    mask: RowMask, part: Part, dim: int = 0, first: int | None = None, last: int | None = None, step: int = 1
) -> RowMask | None:
    """Some texts, queries or adjacent keys."""
    dim %= 4
    taken = slice(first, last, step)
    if dim == 0:
        return mask.some(mask.start[taken], mask.stop[taken], mask.shape[-1], part)
    if dim == 2:  # noqa: PLR2004 queries
        return mask.some(mask.start[:, taken], mask.stop[:, taken], mask.shape[-1], part)
    low, high, _ = taken.indices(mask.shape[dim])
    if step != 1 or high <= low:
        return None
    if dim == 1:
        return _same(mask, part)
    start, stop = (bound.clamp(low, high) - low for bound in (mask.start, mask.stop))
    # as `extent_of` has it, a row that allows nothing begins and ends at 0
    visible = stop > start
    return mask.some(start * visible, stop * visible, high - low, part)


def _expanded(mask: RowMask, part: Callable[[Tensor], Tensor], sizes: list[int], **_: bool) -> RowMask | None:
    """The same rows for each text."""
    whole = [size_before if size == -1 else size for size_before, size in zip(mask.shape, sizes, strict=False)]
    if len(sizes) != 4 or whole[1:] != list(mask.shape[1:]):  # noqa: PLR2004
        return None
    start, stop = (bound.expand(whole[0], -1) for bound in (mask.start, mask.stop))
    return mask.some(start, stop, mask.shape[-1], part)


def _rows(mask: RowMask, _: Callable[[Tensor], Tensor], indices: list[Tensor | None]) -> RowMask | None:
    """Queries by index: a copy, independent of the whole."""
    if len(indices) != 3 or indices[0] is not None or indices[1] is not None:  # noqa: PLR2004
        return None
    rows = cast("Tensor", indices[2])
    if rows.ndim != 1:
        return None
    return RowMask(mask.start[:, rows], mask.stop[:, rows], mask.shape[-1])


_PARTS: dict[Any, Any] = {
    ATEN.alias.default: _same,
    ATEN.detach.default: _same,
    ATEN.slice.Tensor: _cut,
    ATEN.expand.default: _expanded,
    ATEN.index.Tensor: _rows,
}


class OffsetBias(Tensor):
    r"""A bias ``(..., query, key)`` with one number for each offset, :math:`b_{ij} = v_{j - i + n - 1}` of n queries.

    It behaves as a tensor: other operations write the whole matrix out. Slices of texts, heads, queries and keys stay
    an `OffsetBias`, and an `AttentionCall` with such a bias is measured tile by tile, so the matrix is never in memory.

    Parameters
    ----------
    by_offset
        ``(..., queries + keys - 1)``: the number at each offset key - query, both counted from 0, from
        ``-(queries - 1)`` to ``keys - 1``. If the last query is at the last key (a cache has earlier keys), a
        query's position is its index plus ``keys - queries``, as in `RelativeBias.by_offset` and `alibi_by_offset`.
    queries
        Number of queries.

    Raises
    ------
    AttnscopeError
        If there are fewer numbers than queries, or if an operation needs a gradient of it or writes to it.
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
        with torch.inference_mode(mode=False):  # views must be ordinary tensors, too
            made = Tensor._make_wrapper_subclass(cls, shape, dtype=by_offset.dtype, device=by_offset.device)  # noqa: SLF001
            by_offset = by_offset.detach() if by_offset.requires_grad else by_offset
            made.by_offset = by_offset.clone() if by_offset.is_inference() else by_offset
        return made

    @property
    def upside_down(self) -> Tensor:
        """The matrix with the last query first, ``(..., query, key)``: a view, each row shifted by one."""
        return self.by_offset.unfold(-1, self.shape[-1], 1)

    def written(self) -> Tensor:
        """Write it out as an ordinary tensor."""
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
        shares_memory = False  # whether the operation returns a view of such a bias
        for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001
            argument_value = args[number] if number < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and isinstance(argument_value, OffsetBias):
                if argument.alias_info.is_write:
                    raise AttnscopeError("a bias by offset cannot be written into: write into what .written() gives")
                shares_memory = True
        with torch.inference_mode(mode=False) if shares_memory else nullcontext():
            bias = args[0] if args else None
            if isinstance(bias, OffsetBias):
                if func in _EACH and _are_alike(bias, args):
                    numbers: Any = tree_map_only(OffsetBias, lambda one: one.by_offset, args)
                    return OffsetBias(func(*numbers, **kwargs), bias.shape[-2])
                part = _OFFSET_BIAS_PARTS[func](bias, *args[1:], **kwargs) if func in _OFFSET_BIAS_PARTS else None
                if part is not None:
                    return part
            decomposed = func.decompose(*args, **kwargs)  # of other functions, which come whole in inference mode
            if decomposed is not NotImplemented:
                return decomposed
            args, options = tree_map_only(OffsetBias, OffsetBias.written, (args, kwargs))
            return func(*args, **options)


def _are_alike(bias: OffsetBias, args: tuple[Any, ...]) -> bool:
    """Whether all operands depend on offsets alone."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    return all(isinstance(one, OffsetBias) and one.shape == bias.shape for one in tensors)


#: Elementwise operations
_EACH = {
    *(ATEN.alias.default, ATEN.detach.default, ATEN.clone.default, ATEN._to_copy.default),  # noqa: SLF001
    *(ATEN.le.Scalar, ATEN.bitwise_not.default, ATEN.masked_fill.Scalar),
}


def _selected(bias: OffsetBias, dim: int, index: int) -> Tensor | None:
    """One text or head, or the numbers of one query or key."""
    lead = bias.ndim - 2
    dim, queries = dim % bias.ndim, bias.shape[-2]
    if dim < lead:
        return OffsetBias(bias.by_offset.select(dim, index), queries)
    if dim == lead:
        return bias.upside_down.select(-2, queries - 1 - index % queries).clone()
    return bias.upside_down.select(-1, index).flip(-1)


def _offset_bias_cut(
    bias: OffsetBias, dim: int = 0, first: int | None = None, last: int | None = None, step: int = 1
) -> OffsetBias | None:
    """Some texts or heads; adjacent queries or keys."""
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


def _offset_bias_expanded(bias: OffsetBias, sizes: list[int], **_: bool) -> OffsetBias | None:
    """The same for more texts or heads."""
    whole = [size_before if size == -1 else size for size_before, size in zip(bias.shape[-2:], sizes[-2:], strict=True)]
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
    """The number at one offset, repeated for its pairs."""
    if (dim1 % bias.ndim, dim2 % bias.ndim) != (bias.ndim - 2, bias.ndim - 1):
        return None
    queries, keys = bias.shape[-2:]
    pairs = min(queries, keys - offset) - max(0, -offset)
    if pairs <= 0:
        return bias.by_offset[..., :0]
    return bias.by_offset[..., offset + queries - 1, None].expand(*bias.shape[:-2], pairs)


def _numbered(bias: OffsetBias, indices: list[Tensor | None]) -> Tensor | None:
    """Queries by index, with texts, heads and keys; only these rows are made."""
    lead = bias.ndim - 2
    tensors = [index for index in indices if index is not None]
    if len(indices) <= lead or indices[lead] is None or any(index.dtype in _MARKS for index in tensors):
        return None
    rows, queries = cast("Tensor", indices[lead]), bias.shape[-2]
    return ATEN.index.Tensor(bias.upside_down, [*indices[:lead], queries - 1 - rows % queries, *indices[lead + 1 :]])


def _gathered(bias: OffsetBias, dim: int, index: Tensor, **_: bool) -> Tensor | None:
    """Some keys of each query."""
    if dim % bias.ndim != bias.ndim - 1 or index.shape[:-1] != bias.shape[:-1]:
        return None
    return bias.upside_down.gather(-1, index.flip(-2)).flip(-2)


def _least(bias: OffsetBias, dim: list[int] | None = None, keepdim: bool = False) -> Tensor | None:
    """Extreme of all entries; each offset occurs at least once."""
    return None if dim or keepdim else bias.by_offset.amin()


_OFFSET_BIAS_PARTS: dict[Any, Any] = {
    ATEN.amin.default: _least,
    ATEN.select.int: _selected,
    ATEN.slice.Tensor: _offset_bias_cut,
    ATEN.expand.default: _offset_bias_expanded,
    ATEN.view.default: _viewed,
    ATEN.unsqueeze.default: _unsqueezed,
    ATEN.diagonal.default: _diagonal,
    ATEN.index.Tensor: _numbered,
    ATEN.gather.default: _gathered,
}
