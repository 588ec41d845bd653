"""Attention calls inside any PyTorch module, seen while its owner calls it in their own way."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from attnscope._caller import own_random_numbers
from attnscope.capture._flex import flex_attention_seen
from attnscope.capture._functional import (
    SeenCall,
    have_same_weights,
    of_eager,
    of_flex,
    of_multi_head,
    of_scaled_dot_product,
)
from attnscope.capture._heuristics import is_called_attention, related
from attnscope.capture._watch import Site
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from attnscope.attention import AttentionCall

_FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)  # they have a fast path
_MARK = "_attnscope_watched"
_EAGER = "eager_attention_forward"


@dataclass(frozen=True, eq=False)
class PassObserver:
    """What is done with the calls of each forward pass.

    Attributes
    ----------
    see
        Called at once with each call.
    done
        Called with the number of calls once the outermost call of a module has returned.
    lost
        Called instead where it has raised an error.

    Examples
    --------
    >>> layer, x = nn.MultiheadAttention(8, 2), torch.zeros(4, 1, 8)
    >>> told = []
    >>> observer = PassObserver(lambda site, seen: told.append(seen.kind), done=told.append, lost=lambda: None)
    >>> with calls_inside(layer, observer):
    ...     _ = layer(x, x, x)
    >>> told  # a call, and then how many there were
    ['self', 1]
    """

    see: Callable[[Site, SeenCall], None]
    done: Callable[[int], None]
    lost: Callable[[], None]


@contextmanager
def calls_inside(module: nn.Module, observer: PassObserver) -> Generator[ModuleCalls]:
    """Give every attention call inside `module` to `observer`, without any change of what the module returns.

    The ``forward`` of each submodule is wrapped, so that the name of the running one is known, and a torch function
    mode sees the calls of ``scaled_dot_product_attention`` and ``multi_head_attention_forward``. Modules of PyTorch
    that may take a fast path around both are run twice where they might: once for the observer on the slow path, and
    once as they are. ``flex_attention`` runs as it does without ``torch.compile``.

    Parameters
    ----------
    module
        Any module; it may be called any number of times meanwhile.
    observer
        What is done with the calls.

    Yields
    ------
    ModuleCalls
        Which modules run now; what its `aside` covers is not seen.

    Raises
    ------
    AttnscopeError
        If calls inside the module cannot be seen (scripted, compiled, data parallel), or it is watched already.

    Examples
    --------
    >>> layer = nn.MultiheadAttention(8, 2)
    >>> seen = []
    >>> observer = PassObserver(lambda site, call: seen.append(site.kind), done=print, lost=lambda: None)
    >>> with calls_inside(layer, observer):
    ...     _ = layer(*[torch.zeros(4, 1, 8)] * 3)
    1
    >>> seen
    ['self']
    """
    _refuse(module)
    watched = ModuleCalls(observer)
    before = {part: part.__dict__.get("forward") for part in module.modules()}
    try:
        for name, part in module.named_modules():
            part.__dict__["forward"] = watched.wrap(name or type(module).__name__, part)
        with flex_attention_seen(watched.flex), _eager_seen(module, watched):
            yield watched
    finally:
        for part, own in before.items():
            part.__dict__.pop("forward", None)
            if own is not None:
                part.__dict__["forward"] = own


@contextmanager
def _eager_seen(module: nn.Module, watched: ModuleCalls) -> Generator[None]:
    """See what layers of transformers compute by their file's own ``eager_attention_forward``."""
    parts = set(module.modules())
    files = {
        id(file): file for part in parts for file in map(_names_beside, type(part).__mro__) if _EAGER in file
    }
    before = [(file, file[_EAGER]) for file in files.values()]

    def seen(inner: Callable[..., Any]) -> Callable[..., Any]:
        known = inspect.signature(inner)

        @wraps(inner)
        def eager_attention_forward(*args: Any, **options: Any) -> Any:
            made = inner(*args, **options)
            arguments = known.bind(*args, **options).arguments
            if watched.running and arguments.get("module") in parts:
                watched.see(of_eager(made[0], arguments))
            return made

        return eager_attention_forward

    try:
        for file, inner in before:
            file[_EAGER] = seen(inner)
        yield
    finally:
        for file, inner in before:
            file[_EAGER] = inner


def _names_beside(kind: type) -> dict[str, Any]:
    """The names of the file in which a class was made."""
    return getattr(sys.modules.get(kind.__module__), "__dict__", {})


class ModuleCalls:
    """The modules that run now, from the outermost to the innermost.

    Examples
    --------
    See `calls_inside`.

    >>> x = torch.zeros(1, 2, 4, 8)
    >>> calls = ModuleCalls(PassObserver(lambda site, seen: print(site.name), done=print, lost=lambda: None))
    >>> with calls.within("layer"):
    ...     _ = nn.functional.scaled_dot_product_attention(x, x, x)
    layer
    1
    """

    def __init__(self, observer: PassObserver) -> None:
        self.observer = observer
        self.running: list[str] = []
        self.given: list[Sequence[Any]] = []  # to each of the modules that run
        self.attending: dict[str, str] = {}  # modules that ran and are called attention, with their classes
        self.calls = 0
        self.last: SeenCall | None = None
        self.is_aside = False
        self.in_fast = self.in_flex = False
        self.mode = _Mode(self.see)

    def wrap(self, name: str, module: nn.Module) -> Callable[..., Any]:
        inner = module.forward
        may_be_fast = isinstance(module, _FAST)

        @wraps(inner)
        def forward(*args: Any, **options: Any) -> Any:
            if self.is_aside:
                return inner(*args, **options)
            if not self.running or isinstance(
                module, PreTrainedModel
            ):  # perhaps within a prompt of somebody else's
                _refuse_cache(name, options.get("past_key_values"))
            if is_called_attention(module):
                self.attending[name] = type(module).__name__
            with self.within(name, [*args, *options.values()]):
                if may_be_fast and not self.in_fast and not module.training:
                    return self.twice(inner, args, options)
                return inner(*args, **options)

        setattr(forward, _MARK, True)
        return forward

    def unseen(self, seen: Iterable[str]) -> dict[str, str]:
        """Modules that ran, are called attention and made no call that was seen, with their classes."""
        names = [name for name in self.attending if not any(related(name, other) for other in seen)]
        # a layer, rather than what holds it
        inner = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
        return {name: self.attending[name] for name in inner}

    @contextmanager
    def aside(self) -> Generator[None]:
        """Let modules run within as if nobody watched them: somebody else does."""
        self.is_aside = True
        try:
            yield
        finally:
            self.is_aside = False

    @contextmanager
    def within(self, name: str, given: Sequence[Any] = ()) -> Generator[None]:
        if self.running:
            self.running.append(name)
            self.given.append(given)
            try:
                yield
            finally:
                self.running.pop()
                self.given.pop()
            return
        self.running, self.given, self.calls = [name], [given], 0
        try:
            with self.mode:
                yield
        except BaseException as error:
            self.observer.lost()
            if (
                type(error).__module__ == "torch._dynamo.exc" and not self.in_flex
            ):  # it cannot compile what watches
                raise AttnscopeError(
                    f"{name} calls a compiled function, within which nothing can be seen: let it call the function as "
                    "it was before torch.compile"
                ) from error
            raise
        else:
            self.observer.done(self.calls)
        finally:
            self.running, self.given, self.last = [], [], None

    def twice(self, inner: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
        """Run a module once for the observer, and once with no mode about, as its owner would."""
        self.in_fast = True
        try:
            with own_random_numbers(), torch.no_grad():
                inner(*args, **options)
            self.mode.__exit__(None, None, None)
            try:
                return inner(*args, **options)
            finally:
                self.mode.__enter__()
        finally:
            self.in_fast = False

    def flex(self, function: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
        """Run ``flex_attention`` with no mode about, which it does not bear, and see its call."""
        if not self.running:
            return function(*args, **options)
        self.mode.__exit__(None, None, None)
        self.in_flex = True  # what it raises here it raises unwatched too
        try:
            output = function(*args, **options)
            self.in_flex = False
            self.see(of_flex(output, *args, **options))
        finally:
            self.mode.__enter__()
        return output

    def see(self, call: SeenCall) -> None:
        name = self.running[-1]
        last, self.last = self.last, replace(call, kind=name)
        if last is not None and last.kind == name and have_same_weights(last.call, call.call):
            return  # the second half of the values (DiffLlama): one layer, which was seen
        if call.kind == "cross":
            _refuse_own_keys(name, call.call, self.given[-1])
        site = Site(self.calls, name, call.kind)
        self.calls += 1
        self.observer.see(site, call)


class _Mode(TorchFunctionMode):
    """Sees calls of PyTorch's functions."""

    def __init__(self, see: Callable[[SeenCall], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        output = func(*args, **options)
        if func is functional.scaled_dot_product_attention:
            self.see(of_scaled_dot_product(output, *args, **options))
        elif func is functional.multi_head_attention_forward:
            self.see(of_multi_head(*args, **options))
        return output


def _refuse_cache(name: str, cache: Any) -> None:
    """Refuse a pass over keys of earlier passes: its queries would be taken for the first tokens of a text."""
    if hasattr(cache, "get_seq_length") and (cached_tokens(cache) or getattr(cache, "is_compileable", False)):
        raise AttnscopeError(
            f"{name} is given a cache of keys in past_key_values (also the virtual tokens of prefix tuning), so the "
            "positions of its queries are unknown: leave it out, or call generate() within the context"
        )


def cached_tokens(cache: Any) -> int:
    """How many tokens a cache of transformers holds, also where its first layer keeps no keys (hybrids)."""
    layers = getattr(cache, "layers", [])
    return int(cache.get_seq_length()) or max(
        (int(layer.get_seq_length()) for layer in layers if hasattr(layer, "get_seq_length")), default=0
    )


def _refuse_own_keys(name: str, call: AttentionCall, given: Sequence[Any]) -> None:
    """Reject more keys than queries where nothing that a module was given has that many positions."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    states = [
        leaf.shape[:-1]
        for leaf in tree_leaves(given)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 2  # noqa: PLR2004
    ]
    if keys > queries > 1 and states and all(queries in shape and keys not in shape for shape in states):
        raise AttnscopeError(
            f"{name} attends from {queries} tokens to {keys} keys, {keys - queries} of which are not its tokens (a "
            "prefix or a memory), so offsets are unknown: leave them out, or give the weights of the tokens to "
            "attnscope.measure_weights"
        )


def _refuse(module: nn.Module) -> None:
    for name, part in module.named_modules():
        where = f"{name} is" if name else "the module is"
        if isinstance(part, torch.jit.ScriptModule):
            raise AttnscopeError(f"{where} scripted, and runs unseen: watch the module that it was made from")
        if isinstance(part, nn.DataParallel):
            raise AttnscopeError(f"{where} in DataParallel, which copies it: watch its .module")
        if (
            "_orig_mod" in dict(part.named_children())
            or getattr(part, "_compiled_call_impl", None) is not None
        ):
            raise AttnscopeError(
                f"{where} compiled, and runs unseen: watch and call the module as it was before torch.compile"
            )
        if hasattr(part.forward, _MARK):
            raise AttnscopeError(f"{where} watched already: one attnscope.watch at a time")
