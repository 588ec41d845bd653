"""Which token of a video encoder is which tubelet (frames, row, column): told by the model's own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.capture import tubelet_of
from attnscope.corpus import VIDEO, Window
from attnscope.statistics.images import NOTHING, first_states, pattern
from attnscope.statistics.pictured import Tile

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_MOST = 8  # groups of frames
_BESIDE = "special"


@dataclass(frozen=True)
class TubeletStep(Tile):
    """The tubelets of the same frames, as tokens in rows and columns.

    Attributes
    ----------
    together
        How many frames are read as one.

    Examples
    --------
    >>> TubeletStep(1, 2, 1, 2, (5, 6), 2, together=2).names
    {5: 'frames 3-4 r0c0', 6: 'frames 3-4 r0c1'}
    """

    together: int = 1

    @property
    def name(self) -> str:
        """Which frames they are, of those that the model reads, from 1."""
        return _frames((self.number - 1) * self.together + 1, self.number * self.together)


@dataclass(frozen=True)
class Tubelets:
    """The tokens of one video.

    Attributes
    ----------
    steps, rows, columns
        How many tubelets there are in time, and in each frame.
    together
        Frames in one tubelet.
    first
        The token of the first tubelet.
    strides
        How many tokens further the next one is in time, a row below, a column to the right.
    tokens
        All tokens, also those that are no tubelets.

    Examples
    --------
    >>> tubelets = Tubelets(2, 1, 2, together=2, first=1, strides=(2, 2, 1), tokens=5)
    >>> tubelets.window("video 1").tokens
    ('[class]', 'frames 1-2 r0c0', 'frames 1-2 r0c1', 'frames 3-4 r0c0', 'frames 3-4 r0c1')
    """

    steps: int
    rows: int
    columns: int
    together: int
    first: int
    strides: tuple[int, int, int]
    tokens: int

    def places(self) -> np.ndarray:
        """The token of each tubelet, ``(step, row, column)``."""
        grid = np.indices((self.steps, self.rows, self.columns))
        return self.first + np.tensordot(self.strides, grid, axes=1)

    def as_tiles(self, key: str) -> tuple[TubeletStep, ...]:
        """The steps, each over the first of its frames; `key` is the argument that holds the frames."""
        return tuple(
            TubeletStep(
                1,
                number + 1,
                self.rows,
                self.columns,
                tuple(own.reshape(-1).tolist()),
                number * self.together,
                VIDEO,
                key,
                self.together,
            )
            for number, own in enumerate(self.places())
        )

    def groups(self) -> list[str]:
        """Names of the groups of frames, at most 8, and of what is no tubelet where there is such."""
        beside = self.tokens > self.steps * self.rows * self.columns
        return [*dict.fromkeys(map(self._group, range(self.steps))), *[_BESIDE] * beside]

    def _group(self, step: int) -> str:
        """Of as many steps each as make 8 groups at most."""
        share = -(-self.steps // _MOST)
        first = step // share * share
        return _frames(first * self.together + 1, min(self.steps, first + share) * self.together)

    def window(self, name: str) -> Window:
        """The video as the windows of a page are; `roles` says in which group of frames each token is."""
        tiles = self.as_tiles("")
        names = {token: shown for tile in tiles for token, shown in tile.names.items()}
        roles = {token: self._group(tile.number - 1) for tile in tiles for token in tile.tokens}
        special = tuple(token not in names for token in range(self.tokens))
        return Window(
            (0,) * self.tokens,
            special,
            ((0, 0),) * self.tokens,
            name,
            0,
            tuple(names.get(token, "[class]" if token == 0 else "[special]") for token in range(self.tokens)),
            roles=tuple(roles.get(token, _BESIDE) for token in range(self.tokens)),
        )


@torch.no_grad()
def tubelets_of(model: PreTrainedModel, given: dict[str, Any], key: str) -> Tubelets | str:
    """Find the tubelets: which token changes before any attention when the pixels of one do.

    The first tubelet, the next in time, the one below, the one to the right and the last tell where they begin and in
    which order they stand. Each must change one token and no other.

    Parameters
    ----------
    model
        In eval mode.
    given
        Arguments of its forward pass, with one video ``(1, frame, channel, row, column)``.
    key
        Name of that argument.

    Returns
    -------
    Tubelets or str
        Or why there are none.

    Examples
    --------
    >>> from transformers import VideoMAEConfig, VideoMAEModel
    >>> config = VideoMAEConfig(
    ...     image_size=8, patch_size=4, num_frames=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=1
    ... )
    >>> tubelets_of(VideoMAEModel(config).eval(), {"pixel_values": torch.zeros(1, 4, 3, 8, 8)}, "pixel_values")
    Tubelets(steps=2, rows=2, columns=2, together=2, first=0, strides=(4, 2, 1), tokens=8)
    """
    size = tubelet_of(model.config)
    if size is None:
        return "its config tells no patch_size and tubelet_size"
    video: Tensor = given[key]
    counts = [video.shape[1] // size[0], video.shape[3] // size[1], video.shape[4] // size[2]]
    if not all(counts):
        return f"one of its tubelets ({' x '.join(map(str, size))}) is larger than the video"
    before = _states(model, given)
    if before is None:
        return "neither its keys nor its embeddings are seen, which tell which token is which tubelet"
    if len(before) != 1:
        return f"its first layer attends in {len(before)} parts, each by itself, and not over the whole video"
    corners = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), tuple(count - 1 for count in counts)]
    corners = [
        tuple(min(place) for place in zip(corner, (c - 1 for c in counts), strict=True)) for corner in corners
    ]
    tokens = [_changed(model, given, key, before, size, corner) for corner in corners]
    if any(token is None for token in tokens):
        return "in its first layer a tubelet is not one token"
    first, *nexts, last = (token for token in tokens if token is not None)
    strides = (nexts[0] - first, nexts[1] - first, nexts[2] - first)
    tubelets = Tubelets(counts[0], counts[1], counts[2], size[0], first, strides, before.shape[1])
    places = tubelets.places()
    inside = places.min() >= 0 and places.max() < tubelets.tokens and len(np.unique(places)) == places.size
    if not inside or places[-1, -1, -1] != last:
        return "its tubelets do not stand in rows, columns and steps"
    return tubelets


def _states(model: PreTrainedModel, given: dict[str, Tensor]) -> Tensor | None:
    """What tells tokens apart before any attention, ``(part, token, width)``: keys, or else what is embedded."""
    seen = first_states(model, given)
    if seen is not None:
        return seen
    states: Any = getattr(model(**given, output_hidden_states=True), "hidden_states", None)
    return states[0].double() if states else None


def _changed(
    model: PreTrainedModel,
    given: dict[str, Any],
    key: str,
    before: Tensor,
    size: tuple[int, int, int],
    place: tuple[int, ...],
) -> int | None:
    """The token that changes with the pixels of one tubelet; None where it is not one."""
    video = given[key].clone()
    frames, rows, columns = (slice(at * side, (at + 1) * side) for at, side in zip(place, size, strict=True))
    video[0, frames, :, rows, columns] += pattern(size[1:], video[0, 0])
    seen = _states(model, {**given, key: video})
    if seen is None:
        return None
    change = (seen[0] - before[0]).abs().amax(-1)
    tokens = (change > NOTHING * change.amax()).nonzero()[:, 0].tolist()
    return tokens[0] if len(tokens) == 1 else None


def _frames(first: int, last: int) -> str:
    return f"frame {first}" if first == last else f"frames {first}-{last}"
