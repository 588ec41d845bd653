"""State of the caller, changed for a while and restored: random numbers, threads, modes of PyTorch, attributes."""

from __future__ import annotations

import random
from collections.abc import Generator, MutableMapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_in_own_state: ContextVar[bool] = ContextVar("attnscope_in_own_state", default=False)


@contextmanager
def own_state(*, gradients: bool = True) -> Generator[None]:
    """Compute within as in a fresh process, whatever modes of PyTorch and NumPy the caller has set; then restore
    them.
    """
    if _in_own_state.get():
        yield
        return
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(_in_own_state.set, False)  # before it is changed, in case of an interrupt
        _in_own_state.set(True)
        if dtype != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        for device in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if gradients and torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
        if gradients and not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if gradients:  # not where a pass of the caller's is measured, which is in its precision
            _own_kernels(stack)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        yield


def _own_kernels(stack: ExitStack) -> None:
    """Choose the kernels of matrix products and of attention as a fresh process does."""
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":
        stack.callback(torch.set_float32_matmul_precision, precision)
        torch.set_float32_matmul_precision("highest")
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    cuda = torch.backends.cuda
    enabled = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled)
    if not all(is_enabled() for is_enabled in enabled):
        stack.enter_context(sdpa_kernel(kinds))


@contextmanager
def own_random_numbers() -> Generator[None]:
    """Seed and draw within as you like: afterwards the caller's random numbers go on as if nothing had been."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(used):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def same_random_numbers() -> Generator[None]:
    """Draw the same random numbers within each time: passes of a model that masks or samples at random are then one."""
    with own_random_numbers():
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():  # `torch.manual_seed` would note the call stack for a GPU that is not in use
            torch.cuda.manual_seed_all(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        yield


def random_state() -> list[bytes]:
    """State of PyTorch's random numbers, on the processor and on all GPUs in use."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpus)]


@contextmanager
def own_threads(count: int) -> Generator[None]:
    """Let PyTorch compute with `count` threads inside this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def replaced(entries: MutableMapping[str, Any], **others: Any) -> Generator[None]:
    """Within, some entries of a mapping, such as the attributes of an object (``vars``), are others."""
    before = {name: entries[name] for name in others if name in entries}
    try:
        entries.update(others)
        yield
    finally:
        entries.update(before)
        for name in others.keys() - before.keys():
            entries.pop(name, None)


@contextmanager
def frozen(model: nn.Module) -> Generator[None]:
    """Disable gradients of parameters."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
