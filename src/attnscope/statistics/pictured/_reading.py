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

    Examples
    --------
    >>> import torch
    >>> window = Window((9, 3), (False,) * 2, ((0, 1), (1, 2)), "text 1", 0, ("", "a"))
    >>> reading = PicturedReading.of_one(window, {"pixel_values": torch.zeros(1, 3, 4, 4)}, "cpu")
    >>> reading.target.input_ids.tolist(), list(reading.given)
    ([[9, 3]], ['pixel_values'])
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
    """A window, the tokens of each of its images and videos, and frames, rows and columns where known.

    Examples
    --------
    >>> from attnscope.statistics.pictured import Tile
    >>> window = Window((9, 9, 3), (False,) * 3, ((0, 1), (1, 2), (2, 3)), "text 1", 0, ("", "", "a"))
    >>> placed = Placed(window, images=[[0, 1]], videos=[], tiles=(Tile(1, 0, 1, 2, (0, 1), 0),))
    >>> placed.tiles[0].names, [token for token in range(len(window)) if token not in placed.images[0]]
    ({0: 'image 1 r0c0', 1: 'image 1 r0c1'}, [2])
    """

    window: Window
    images: list[list[int]]
    videos: list[list[int]]
    tiles: tuple[Tile, ...]
