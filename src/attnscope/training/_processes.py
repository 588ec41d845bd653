"""One process or several, started by torchrun: who am I, and the sum over all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Processes:
    """The number of this process, and how many there are.

    Examples
    --------
    >>> Processes().first
    True
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up the gradients of all processes, in one message."""
        if self.world == 1:
            return
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        flat = torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in parameters]
        )
        distributed.all_reduce(flat)
        for parameter, part in zip(
            parameters, flat.split([each.numel() for each in parameters]), strict=True
        ):
            parameter.grad = part.view_as(parameter).clone()

    def sum(self, values: Tensor) -> Tensor:
        """Add up numbers of all processes."""
        if self.world > 1:
            distributed.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            distributed.barrier()


def is_first() -> bool:
    """Whether this process is the one that prints, as torchrun tells it before the processes know each other.

    Examples
    --------
    >>> is_first()
    True
    """
    return os.environ.get("RANK", "0") == "0"


def threads_of_one() -> int:
    """Processors that this process may use, shared with the others that torchrun started on this machine.

    Examples
    --------
    >>> 1 <= threads_of_one() <= len(os.sched_getaffinity(0))
    True
    """
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def processes(device: str) -> Generator[Processes]:
    """The processes that torchrun started, or this one alone.

    Examples
    --------
    >>> with processes("cpu") as all_of_us:
    ...     all_of_us.world
    1
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), world)
    finally:
        distributed.destroy_process_group()
