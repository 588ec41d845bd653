"""What is known while a watched model runs: its attention calls, and who looks at them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from attnscope.capture.families import is_attention, other_states
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.masks import Extent, RowMask, extent_of
from attnscope.support.state import own_state

if TYPE_CHECKING:
    from collections.abc import Generator
    from weakref import ref

    from transformers import PreTrainedModel

    from attnscope.capture.eager import EagerWay

if TYPE_CHECKING:
    Look = Callable[["Site", Tensor], None]


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass: which module, and the how-many-th call."""

    index: int
    name: str
    kind: str  # "self", "causal" or "cross"
    heads: int = field(default=0, compare=False, repr=False)  # seen here by `verify`; 0 before


@dataclass(eq=False)
class Way:
    """In which way a model is captured, as `verify` found it."""

    eager: EagerWay | None = None  # where its own modules return weights, in place of the registry
    products: bool = False  # whether its calls of PyTorch's attention functions are captured beside the registry's
    masks_written_out: bool = False  # whether causal masks are, as its layers do not say what they may look at
    draws: bool = False  # whether it draws random numbers: it masks (ViT-MAE) or samples (Informer) in each pass


_ways: WeakKeyDictionary[nn.Module, Way] = WeakKeyDictionary()


def way_of(model: nn.Module) -> Way:
    """The way of a model, which `verify` changes."""
    return _ways.setdefault(model, Way())


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

    with ExitStack() as hooks:
        for start in {model, model.base_model}:  # a pass may leave out the head and start at the body
            hooks.enter_context(start.register_forward_pre_hook(fresh_pass, with_kwargs=True))
        for module in filter(is_attention, model.modules()):
            hooks.enter_context(module.register_forward_pre_hook(note_cross, with_kwargs=True))
        hooks.callback(current.reset, current.set(watch))
        yield watch


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
