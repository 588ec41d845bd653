"""What a model of vision and language reads: one text with its images in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.corpus import Window, collate
from attnscope.statistics._reading import Reading

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.statistics.pictured._tiles import Tile


@dataclass(frozen=True)
class PicturedReading(Reading):
    """One text with its images, as `StatisticsObserver` asks of it.

    Attributes
    ----------
    given
        Arguments of the forward pass.
    """

    given: dict[str, Any]

    @classmethod
    def of_one(cls, window: Window, given: dict[str, Any], device: torch.device | str) -> PicturedReading:
        """One window and what the processor gave for it."""
        text = collate([window], 0).to(device)
        return cls(text, text, given)

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:  # noqa: ARG002
        """Arguments of the forward pass."""
        return self.given


@dataclass(frozen=True)
class Placed:
    """A window, the tokens of each of its images and videos, and frames, rows and columns where known."""

    window: Window
    images: list[list[int]]
    videos: list[list[int]]
    tiles: tuple[Tile, ...]
