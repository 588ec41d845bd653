"""What belongs to the caller's whole process, changed for a while and given back: random numbers and threads."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def own_random_numbers() -> Generator[None]:
    """Seed and draw within as you like: afterwards the caller's random numbers go on as if nothing had been.

    Of PyTorch on the processor and on all GPUs in use, of NumPy and of Python.

    Examples
    --------
    >>> _ = torch.manual_seed(1)
    >>> expected = torch.rand(1)
    >>> _ = torch.manual_seed(1)
    >>> with own_random_numbers():
    ...     _ = torch.manual_seed(7)
    >>> torch.equal(torch.rand(1), expected)
    True
    """
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002
    used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(used):
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002


@contextmanager
def same_random_numbers() -> Generator[None]:
    """Draw the same random numbers within each time: passes of a model that masks or samples at random are then one.

    Examples
    --------
    >>> with same_random_numbers():
    ...     first = torch.rand(1)
    >>> with same_random_numbers():
    ...     torch.equal(torch.rand(1), first)
    True
    """
    with own_random_numbers():
        torch.default_generator.manual_seed(0)
        if (
            torch.cuda.is_initialized()
        ):  # `torch.manual_seed` would note the call stack for a GPU that is not in use
            torch.cuda.manual_seed_all(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        yield


def random_state() -> list[bytes]:
    """Where PyTorch's random numbers stand, on the processor and on all GPUs in use.

    Examples
    --------
    >>> before = random_state()
    >>> _ = torch.zeros(1)
    >>> random_state() == before
    True
    """
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpus)]


@contextmanager
def own_threads(count: int) -> Generator[None]:
    """Let PyTorch compute with so many threads within.

    Examples
    --------
    >>> before = torch.get_num_threads()
    >>> with own_threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
