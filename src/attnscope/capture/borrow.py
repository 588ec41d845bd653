"""Lock a caller's model while it is measured, and restore it afterwards."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import transformers
from torch import nn
from transformers.utils import logging as transformers_logging

from attnscope.bundled import OWN_TEXTS
from attnscope.capture.placement import reject_tensor_parallel
from attnscope.store.files import explained, local_folder
from attnscope.store.folder import OwnedFolder
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from types import FrameType

    from transformers import PreTrainedModel

    from attnscope.opened import Opened


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A loaded model with its tokenizer."""

    model: PreTrainedModel  # on its device
    tokenizer: Any  # None if none is needed
    name: str  # name of the folder or repository
    identity: dict[str, str]  # SHA-256 of the files, or the hub's commit
    session: Callable[[], Opened | None] = field(default=lambda: None, repr=False)  # that opened it for several verbs


P = ParamSpec("P")
R = TypeVar("R")

_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_of_locks = threading.Lock()
_PATIENCE = 60  # seconds to wait for a pass of another thread
COMPILED = "_compiled_call_impl"  # result of ``module.compile()``, which cannot be hooked


@contextmanager
def borrowed(model: PreTrainedModel) -> Generator[None]:
    """Put a model in eval mode, and restore its state afterwards, also after an error."""
    with _of_locks:
        lock = _locks.setdefault(model.base_model, threading.RLock())
    with lock:
        modes = [(module, module.training) for module in model.modules()]
        before = implementations(model.modules())
        compiled = {part: vars(part)[COMPILED] for part in model.modules() if COMPILED in vars(part)}
        try:
            for part in compiled:
                del vars(part)[COMPILED]
            with alone(model):
                model.eval()
                yield
        finally:
            for module, training in modes:
                module.training = training
            for part, call in compiled.items():
                vars(part)[COMPILED] = call
            restore(before)


@contextmanager
def alone(model: PreTrainedModel, modules: Collection[nn.Module] = ()) -> Generator[None]:
    """Let this thread alone run the model, and remove all hooks of attnscope at the end.

    Wait for a pass that another thread is running, and reject those that start. To list `modules` takes a while:
    a caller that knows them passes them on.
    """
    owner, modules = threading.get_ident(), modules or [*model.modules()]
    parts = {*map(id, modules)}
    every = [vars(part)[kind] for part in modules for kind in ("_forward_hooks", "_forward_pre_hooks")]
    earlier = {number for hooks in every if hooks for number in hooks}

    def reject(*_: Any) -> None:
        if threading.get_ident() != owner:
            raise AttnscopeError(
                f"{type(model).__name__} is in use by attnscope in another thread. Run this pass afterwards, or on a "
                "copy of the model"
            )

    try:
        for start in {model, model.base_model}:  # a pass may start at the body
            start.register_forward_pre_hook(reject)
        ends = time.monotonic() + _PATIENCE
        while any(_runs(frame, parts) for thread, frame in sys._current_frames().items() if thread != owner):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if time.monotonic() > ends:
                raise AttnscopeError(
                    f"another thread has been running {type(model).__name__} for {_PATIENCE} s. Wait until it has "
                    "finished, or use a copy of the model"
                )
            time.sleep(0.01)
        yield
    finally:
        for hooks in every:  # also those that an interrupt left between registering and noting them
            for number in hooks.keys() - earlier if hooks else ():
                if is_own_hook(hooks[number]):
                    del hooks[number]


def _runs(frame: FrameType | None, parts: set[int]) -> bool:
    """Whether a thread with this innermost frame is inside a pass of one of the modules."""
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and id(frame.f_locals.get("self")) in parts:
            return True
        frame = frame.f_back
    return False


def is_own_hook(hook: Any) -> bool:
    return str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith(("attnscope.", "attnscope_"))


@contextmanager
def borrowed_arguments(command: str, arguments: dict[str, Any]) -> Generator[None]:
    """Check the folder of a run before a model is loaded, and borrow the models among the arguments of a verb."""
    if isinstance(arguments.get("out"), str | Path):
        arguments["out"] = folder = local_folder(arguments["out"])
        with explained(f"use {folder} as a run folder", "Choose another folder with --out"):
            OwnedFolder(folder, command).look()
    model, texts = arguments.get("model"), arguments.get("texts")
    reads_texts = texts is None and arguments.get("pairs") is None and "by_line" in arguments
    if isinstance(model, str) and model in OWN_TEXTS and reads_texts:
        arguments |= {"texts": OWN_TEXTS[model], "by_line": True}
    with ExitStack() as stack:
        for argument in arguments.values():
            inner = inner_model(argument)
            if isinstance(inner, transformers.PreTrainedModel):
                stack.enter_context(borrowed(inner))
        yield


def implementations(modules: Iterable[nn.Module]) -> list[tuple[Any, str | None]]:
    """Every config of the modules of a model with its attention implementation, outer configs first."""
    configs: dict[int, Any] = {}
    for module in modules:
        config = vars(module).get("config")
        if config is not None and id(config) not in configs and hasattr(config, "_attn_implementation"):
            waiting = [config]
            while waiting:
                config = waiting.pop()
                configs.setdefault(id(config), config)
                parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
                waiting += [part for part in reversed(parts) if part is not None]
    return [(config, config._attn_implementation) for config in configs.values()]  # noqa: SLF001


def restore(before: list[tuple[Any, str | None]]) -> None:
    """Restore the attention implementations that `implementations` returned."""
    for config, implementation in before:  # setting one sets those within it, which come later
        if config._attn_implementation != implementation:  # noqa: SLF001
            config._attn_implementation = implementation  # noqa: SLF001


_HOLDERS = ("_orig_mod", "original_model", "_model", "_module")  # torch.compile, TransformerLens, nnsight


@runtime_checkable
class Envoy(Protocol):
    """A wrapper such as nnsight's ``LanguageModel``."""

    @property
    def _module(self) -> nn.Module:
        """The model of transformers."""
        ...


def inner_model(source: object) -> object:
    """The model that `source` wraps (``torch.compile``, TransformerLens, nnsight, peft, ...); else `source` itself."""
    if isinstance(source, transformers.PreTrainedModel):
        reject_tensor_parallel(source)
        return source
    if isinstance(source, LoadedModel):
        return source.model
    if isinstance(source, nn.Module) and hasattr(source, "peft_config"):
        adapters: Any = source
        if any(config.is_prompt_learning for config in adapters.peft_config.values()):
            raise AttnscopeError(
                f"{type(source).__name__} adds its own tokens to every text; expected an adapter within the layers "
                "(LoRA, IA3, ...)"
            )
        return inner_model(adapters.get_base_model())
    if isinstance(source, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return inner_model(source.module)
    if isinstance(source, nn.Sequential) and len(source) and hasattr(source[0], "auto_model"):
        return inner_model(source[0].auto_model)  # of sentence-transformers
    for name in _HOLDERS:
        wrapped: object = getattr(source, name, None)
        if wrapped is None or wrapped is source:
            continue
        inner = inner_model(wrapped)
        if isinstance(inner, transformers.PreTrainedModel):
            if any(parameter.is_meta for parameter in inner.parameters()):
                raise AttnscopeError(
                    f"{type(source).__name__} contains a {type(inner).__name__} whose weights are not loaded yet. Load "
                    "them first (nnsight: dispatch=True)"
                )
            return inner
    return source


class _Silence:
    """The settings before the first thread entered, which the last to leave restores."""

    lock = threading.Lock()
    inside = level = accelerate = 0
    bars = True


@contextmanager
def quiet() -> Generator[None]:
    """Suppress progress bars and log messages while a model is loaded or saved, in any thread."""
    of_accelerate = logging.getLogger("accelerate")
    with _Silence.lock:
        if _Silence.inside == 0:
            _Silence.level, _Silence.accelerate = transformers_logging.get_verbosity(), of_accelerate.level
            _Silence.bars = transformers_logging.is_progress_bar_enabled()
            if _Silence.level != logging.CRITICAL:  # each setting walks through all loggers, some thousand
                transformers_logging.set_verbosity(logging.CRITICAL)
            if _Silence.accelerate != logging.CRITICAL:
                of_accelerate.setLevel(logging.CRITICAL)
            transformers_logging.disable_progress_bar()
        _Silence.inside += 1
    try:
        yield
    finally:
        with _Silence.lock:
            _Silence.inside -= 1
            if _Silence.inside == 0:
                if _Silence.level != logging.CRITICAL:
                    transformers_logging.set_verbosity(_Silence.level)
                if _Silence.accelerate != logging.CRITICAL:
                    of_accelerate.setLevel(_Silence.accelerate)
                if _Silence.bars:
                    transformers_logging.enable_progress_bar()
