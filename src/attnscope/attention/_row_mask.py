"""A mask that is known by its rows, and written out only where something reads its entries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable

ATEN = torch.ops.aten


class RowMask(Tensor):
    """A boolean mask ``(batch, 1, query, key)`` each of whose rows allows the keys from one to another, and no others.

    It is a tensor to whoever works with it, a model that combines masks among them: what is made of it is made of the
    whole matrix, which is written out for that. Some of its rows and keys are again of this kind.

    Parameters
    ----------
    start, stop
        ``(batch, query)``: the first allowed key, and the one after the last; equal where nothing is allowed.
    keys
        How many keys there are.

    Examples
    --------
    >>> mask = RowMask(torch.tensor([[0, 0, 1]]), torch.tensor([[1, 2, 3]]), 3)
    >>> mask.shape, mask[:, :, 1:].is_known, mask.logical_not()[0, 0, 2].tolist()
    (torch.Size([1, 1, 3, 3]), True, [True, False, False])
    """

    start: Tensor
    stop: Tensor
    _whole: Tensor | None
    _seen_in: tuple[RowMask, Callable[[Tensor], Tensor]] | None

    @staticmethod
    def __new__(  # noqa: PYI034 a class that is checked at run time knows no Self
        cls: type[RowMask],
        start: Int[Tensor, "batch query"],
        stop: Int[Tensor, "batch query"],
        keys: int,
    ) -> RowMask:
        shape = (len(start), 1, start.shape[1], keys)
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=start.device)  # noqa: SLF001
        made.start, made.stop = start, stop
        made._whole = made._seen_in = None  # noqa: SLF001
        return made

    @property
    def is_known(self) -> bool:
        """Whether `start` and `stop` say what is allowed: not once it is written out, for then it may be written to."""
        return self._whole is None if self._seen_in is None else self._seen_in[0].is_known

    def written(self, *, keep: bool = False) -> Tensor:
        """Write it out as any other tensor; one that is kept is what this mask is from then on."""
        if self._seen_in is not None and (keep or not self.is_known):
            whole, part = self._seen_in
            return part(whole.written(keep=True))
        if self._whole is not None:
            return self._whole
        index = torch.arange(self.shape[-1], device=self.start.device)
        made = index >= self.start[:, None, :, None]
        made &= index < self.stop[:, None, :, None]
        if keep:
            self._whole = made
        return made

    def settled(self) -> Tensor:
        """Itself where it is known by its rows, and otherwise what it has become."""
        return self if self.is_known else self.written()

    def taken(self, queries: Int[Tensor, "_ row"]) -> RowMask:
        """Some queries of each text, by their numbers; with more rows of numbers than texts, equally many of each."""
        each = len(queries) // len(self.start)
        start, stop = (
            bound.repeat_interleave(each, 0).gather(1, queries) for bound in (self.start, self.stop)
        )
        return RowMask(start, stop, self.shape[-1])

    def some(self, start: Tensor, stop: Tensor, keys: int, part: Callable[[Tensor], Tensor]) -> RowMask:
        """A part of this mask, which changes when the whole is written to."""
        made = RowMask(start, torch.maximum(start, stop), keys)
        made._seen_in = self, part
        return made

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
            part = _PARTS[func](mask, partial(_again, func, args[1:], kwargs), *args[1:], **kwargs)
            if part is not None:
                return part
        # what writes to the mask, or shares its memory and may be written to, needs one that stays
        keep = any(argument.alias_info is not None for argument in func._schema.arguments)  # noqa: SLF001
        args, options = tree_map_only(RowMask, lambda mask: mask.written(keep=keep), (args, kwargs))
        return func(*args, **options)


#: What asks for a tensor's memory, which a mask that is not written out has none of
OF_MEMORY = {
    Tensor.numpy,
    Tensor.tolist,
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.__array__,
    Tensor.__dlpack__,
    Tensor.__deepcopy__,
    Tensor.__reduce_ex__,
    Tensor.__repr__,
}


def _again(func: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], whole: Tensor) -> Tensor:
    return func(whole, *rest, **kwargs)


def _same(mask: RowMask, part: Callable[[Tensor], Tensor]) -> RowMask:
    return mask.some(mask.start, mask.stop, mask.shape[-1], part)


def _cut(
    mask: RowMask,
    part: Callable[[Tensor], Tensor],
    dim: int = 0,
    first: int | None = None,
    last: int | None = None,
    step: int = 1,
) -> RowMask | None:
    """Some texts, queries or keys; of keys, those that follow each other."""
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
    there = stop > start
    return mask.some(start * there, stop * there, high - low, part)


def _expanded(mask: RowMask, part: Callable[[Tensor], Tensor], sizes: list[int], **_: bool) -> RowMask | None:
    """The same rows for each text."""
    whole = [own if size == -1 else size for own, size in zip(mask.shape, sizes, strict=False)]
    if len(sizes) != 4 or whole[1:] != list(mask.shape[1:]):  # noqa: PLR2004
        return None
    start, stop = (bound.expand(whole[0], -1) for bound in (mask.start, mask.stop))
    return mask.some(start, stop, mask.shape[-1], part)


def _rows(mask: RowMask, _: Callable[[Tensor], Tensor], indices: list[Tensor | None]) -> RowMask | None:
    """Queries by their numbers: a copy, which nothing that happens to the whole changes."""
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
