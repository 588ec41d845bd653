"""Statistics on their way from the device to the host, while the device goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Leaving:
    """Tensors that leave a device: on CUDA behind what it was told to do before, and nobody waits until they are read.

    Each number that is asked for at once empties the queue of a GPU, which then stands still until more is told. Other
    devices than CUDA are asked at once: not all of them say when such a copy is whole.

    Attributes
    ----------
    copies
        On the host, in pinned memory; not to be read before they have arrived.
    done
        Comes to pass when they are whole; None where they are.

    Examples
    --------
    >>> Leaving.of({"entropy": torch.tensor([1.5])}).arrived()
    {'entropy': tensor([1.5000])}
    """

    copies: dict[str, Tensor]
    done: torch.cuda.Event | None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Leaving:
        """Tell the device of `tensors`, one for all of them, to send copies."""
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        if device is None:
            return cls({name: tensor.cpu() for name, tensor in tensors.items()}, None)
        with torch.cuda.device(device):  # whose stream the copies and the event are in
            copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in tensors.items()}
            done = torch.cuda.Event()
            done.record()
        return cls(copies, done)

    def arrived(self) -> dict[str, Tensor]:
        """The copies, once they are whole."""
        if self.done is not None:
            self.done.synchronize()
        return self.copies


class LeavingLayers(Mapping[int, "dict[str, Tensor]"]):
    """Tensors of each layer by its index: they leave the device when they are put here, and are waited for when read.

    Examples
    --------
    >>> layers = LeavingLayers()
    >>> layers[1] = {"entropy": torch.tensor([1.5])}
    >>> dict(layers)
    {1: {'entropy': tensor([1.5000])}}
    """

    def __init__(self) -> None:
        self._leaving: dict[int, Leaving] = {}

    def __setitem__(self, layer: int, tensors: Mapping[str, Tensor]) -> None:
        self._leaving[layer] = Leaving.of(tensors)

    def __getitem__(self, layer: int) -> dict[str, Tensor]:
        return self._leaving[layer].arrived()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._leaving))

    def __len__(self) -> int:
        return len(self._leaving)
