"""State of a model's forward passes during capture: its attention calls and their observers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from attnscope.capture.families import attention_modules, other_states
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.masks import Extent, RowMask, extent_of
from attnscope.support.state import own_state, replaced

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.eager import EagerWay

    Look = Callable[["Site", Tensor], None]


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass: its number and its module."""

    index: int
    name: str
    kind: str  # "self", "causal" or "cross"
    heads: int = field(default=0, compare=False, repr=False)  # set by `verify`; 0 before
    group: int = field(default=1, compare=False, repr=False)  # query heads of a key-value head, set by `outlined`


@dataclass(eq=False)
class Way:
    """Method of capture for a model, as determined by `verify`."""

    eager: EagerWay | None = None  # modules that return weights, if the registry is not used
    products: bool = False  # whether calls of PyTorch's attention functions are captured too
    masks_written_out: bool = False  # whether causal masks are built in full, for layers without causal settings
    state: Any = None  # of the model, when these results were found
    results: dict[Any, Any] = field(default_factory=dict[Any, Any])
    calls: int | None = None  # number of attention calls in the verified pass
    has_bias: bool = True  # whether something may be added to scores
    draws: bool = False  # whether it draws random numbers: it masks (ViT-MAE) or samples (Informer) in each pass


_ways: WeakKeyDictionary[nn.Module, Way] = WeakKeyDictionary()


def way_of(model: nn.Module) -> Way:
    """The method of capture for a model, which `verify` changes."""
    return _ways.setdefault(model, Way())


#: Observes each attention call, and returns its output.
Observer = Callable[[Site, AttentionCall], Tensor | None]


class Watch:
    """State of one forward pass during capture."""

    def __init__(self, names: dict[int, str], observer: Observer) -> None:
        self.names = names
        self.observer = observer
        self.calls = 0
        self.cross: set[int] = set()  # modules with other states as keys and values
        self.mask_extents: dict[int, tuple[Tensor, Extent]] = {}
        self.before: tuple[ref[Tensor], ref[Tensor]] | None = None  # query and key of the last call
        self.look: Look | None = None
        self.held: PreTrainedModel | None = None  # the model, if it stays watched from one pass to the next
        self.tokens: int | None = None  # number of tokens of the text
        self.is_observing = False

    def extent_of(self, mask: Tensor) -> Extent:
        """The extent of a mask, computed once per forward pass, because layers share masks."""
        if isinstance(mask, RowMask):  # it stores its extent
            return extent_of(mask)
        stored = self.mask_extents.get(mask.data_ptr())
        if stored is None or stored[0].shape != mask.shape:
            stored = self.mask_extents[mask.data_ptr()] = mask, extent_of(mask)
        return stored[1]

    def observe(
        self,
        site: Site,
        call: AttentionCall,
        reported: Tensor | None = None,
        compute: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Pass a call to the observer, and its output (or `reported`) to the callback for outputs."""
        self.calls += 1
        self.is_observing = True
        try:
            with own_state(gradients=False):  # in `watch`, the surrounding state is the caller's
                output = self.observer(site, call)
            if output is None:
                output = output_of(call) if compute is None else compute()
        finally:
            self.is_observing = False
        if self.look is not None:
            self.look(site, output if reported is None else reported)
        return output


current: ContextVar[Watch | None] = ContextVar("attnscope_watch", default=None)


@contextmanager
def passes_of(model: PreTrainedModel, observer: Observer, modules: Mapping[str, nn.Module]) -> Generator[Watch]:
    """Track the passes of a model with these modules: number the calls, and note modules with cross-attention."""
    watch = Watch({id(module): name for name, module in modules.items()}, observer)

    def fresh_pass(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        ids = options.get("input_ids", arguments[0] if arguments else None)
        watch.tokens = ids.shape[-1] if ids is not None else watch.tokens
        watch.calls, watch.before = 0, None
        watch.mask_extents.clear()

    def note_cross(module: nn.Module, _: Any, arguments: dict[str, Any]) -> None:
        if other_states(arguments) is not None:
            watch.cross.add(id(module))

    with ExitStack() as hooks:
        for start in {model, model.base_model}:  # a pass may leave out the head and start at the body
            hooks.enter_context(start.register_forward_pre_hook(fresh_pass, with_kwargs=True))
        for module in attention_modules(modules.values()):
            hooks.enter_context(module.register_forward_pre_hook(note_cross, with_kwargs=True))
        hooks.callback(current.set, current.get())  # before it is changed, in case of an interrupt
        current.set(watch)
        yield watch


@contextmanager
def looking(look: Look) -> Generator[None]:
    """Within `watching`, also pass every output of the observer to ``look(site, output)``."""
    watch = current.get()
    if watch is None:
        yield
        return
    with replaced(vars(watch), look=look):
        yield
