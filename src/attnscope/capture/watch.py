"""The mask that transformers asks for, without its matrix wherever each row is one stretch of keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from attnscope.capture.families import is_attention, other_states
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.masks import MASK_ENTRIES, Extent, RowMask, extent_by_rows, extent_of
from attnscope.support.state import own_state

if TYPE_CHECKING:
    from collections.abc import Generator
    from weakref import ref

    from torch import nn
    from transformers import PreTrainedModel

_ASKED = signature(sdpa_mask)


def row_mask(*sizes: Any, **asked: Any) -> Tensor | None:
    """Give what `sdpa_mask` gives, as a `RowMask` where it would be long and no row has gaps."""
    named: dict[str, Any] = dict(_ASKED.bind(*sizes, **asked).arguments)
    named |= named.pop("kwargs", {})
    batch, queries, keys = (named[name] for name in ("batch_size", "q_length", "kv_length"))
    if not all(isinstance(size, int) for size in (batch, queries, keys)) or batch * queries * keys <= MASK_ENTRIES:
        return sdpa_mask(**named)
    if torch.compiler.is_compiling() or torch.device(named.get("device", "cpu")).type == "meta":
        return sdpa_mask(**named)  # nothing can be known there of what a row allows
    probe: dict[str, Any] = {"mask_function": _everything, "use_vmap": False}
    if sdpa_mask(**(named | probe)) is None:
        return None
    extent = extent_by_rows(partial(_some_rows, named), queries, batch * keys)
    if not extent.is_contiguous:
        return sdpa_mask(**named)
    return RowMask(extent.start, extent.stop, keys)


def _everything(_text: Tensor, _head: Tensor, query: Tensor, _key: Tensor) -> Tensor:
    """A mask function that forbids nothing, in one number: for whether transformers would make a mask at all."""
    return query.new_ones((1, 1, 1, 1), dtype=torch.bool)


def _some_rows(named: dict[str, Any], rows: slice) -> Tensor:
    some: dict[str, Any] = {
        "q_length": rows.stop - rows.start,
        "q_offset": named.get("q_offset", 0) + rows.start,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    return cast("Tensor", sdpa_mask(**(named | some)))  # None only where it may skip


if TYPE_CHECKING:
    Look = Callable[["Site", Tensor], None]


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass: which module, and the how-many-th call."""

    index: int
    name: str
    kind: str  # "self", "causal" or "cross"
    heads: int = field(default=0, compare=False, repr=False)  # seen here by `verify`; 0 before


#: What looks at each attention call, and returns its output.
Observer = Callable[[Site, AttentionCall], Tensor | None]


class Watch:
    """What is known during one forward pass of a watched model."""

    def __init__(self, names: dict[int, str], observer: Observer) -> None:
        self.names = names
        self.observer = observer
        self.calls = 0
        self.cross: set[int] = set()  # modules that were given other states to look at
        self.mask_extents: dict[int, tuple[Tensor, Extent]] = {}
        self.before: tuple[ref[Tensor], ref[Tensor]] | None = None  # query and key of the last call
        self.look: Look | None = None
        self.tokens: int | None = None  # of the text that is read
        self.is_observing = False

    def begin(self, ids: Any) -> None:
        """A new pass begins."""
        self.tokens = ids.shape[-1] if ids is not None else self.tokens
        self.calls = 0
        self.before = None
        self.mask_extents.clear()

    def extent_of(self, mask: Tensor) -> Extent:
        """What a mask allows, found once a forward pass: layers share one."""
        if isinstance(mask, RowMask):  # without memory of its own, and nothing has to be searched
            return extent_of(mask)
        known = self.mask_extents.get(mask.data_ptr())
        if known is None or known[0].shape != mask.shape:
            known = self.mask_extents[mask.data_ptr()] = mask, extent_of(mask)
        return known[1]

    def observe(
        self, site: Site, call: AttentionCall, shown: Tensor | None = None, own: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """Show a call to the observer, and what it returns (or `shown`) to whoever looks at outputs."""
        self.calls += 1
        self.is_observing = True
        try:
            with own_state(gradients=False):  # in `watch`, all around it is the caller's
                output = self.observer(site, call)
            if output is None:
                output = output_of(call) if own is None else own()
        finally:
            self.is_observing = False
        if self.look is not None:
            self.look(site, output if shown is None else shown)
        return output


current: ContextVar[Watch | None] = ContextVar("attnscope_watch", default=None)


@contextmanager
def passes_of(model: PreTrainedModel, observer: Observer) -> Generator[Watch]:
    """Watch the passes of a model: each counts its sites anew, and tells which modules look at other states."""
    watch = Watch({id(module): name for name, module in model.named_modules()}, observer)

    def fresh_pass(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        watch.begin(named.get("input_ids", given[0] if given else None))

    def note_cross(module: nn.Module, _: Any, arguments: dict[str, Any]) -> None:
        if other_states(arguments) is not None:
            watch.cross.add(id(module))

    # a pass may leave out the head and start at the body
    hooks = [start.register_forward_pre_hook(fresh_pass, with_kwargs=True) for start in {model, model.base_model}]
    hooks += [
        module.register_forward_pre_hook(note_cross, with_kwargs=True)
        for module in model.modules()
        if is_attention(module)
    ]
    token = current.set(watch)
    try:
        yield watch
    finally:
        current.reset(token)
        for hook in hooks:
            hook.remove()


@contextmanager
def looking(look: Look) -> Generator[None]:
    """Within `watching`, show every output that the observer returns to ``look(site, output)`` as well."""
    watch = current.get()
    if watch is None:
        yield
        return
    watch.look = look
    try:
        yield
    finally:
        watch.look = None
