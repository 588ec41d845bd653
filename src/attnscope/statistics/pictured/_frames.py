"""Which tokens of a video belong to which frame: by what the processor says, or by the model's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture import merged_side
from attnscope.corpus import VIDEO
from attnscope.statistics.images import NOTHING
from attnscope.statistics.pictured._tiles import OF_VIDEOS, PIXELS, Tile, Tiles, pixels_of, rows_and_columns

if TYPE_CHECKING:
    from attnscope.capture import PicturedModel
    from attnscope.corpus import Expanded


@dataclass(eq=False)
class Frames:
    """Finds the frames of texts with videos, and the rows and columns of each.

    Attributes
    ----------
    model
        Which reads them.
    unknown
        Why frames, or rows and columns, are not known, where they are not.
    told
        How frames are known: ``processor`` or ``pixels``.
    """

    model: PicturedModel
    unknown: str = ""
    told: set[str] = field(default_factory=set[str])

    def of(
        self, expanded: Expanded, given: dict[str, Any], images: int
    ) -> tuple[list[list[list[int]]], list[Tile]]:
        """The tokens of each frame of each video of a text, and the frames as tiles; both empty where not known.

        Parameters
        ----------
        expanded, given
            From `PicturedModel.read`.
        images
            How many the text has beside its videos.
        """
        pieces = expanded.video_tokens()
        if not any(pieces):
            return [], []
        grids: Any = given.get("video_grid_thw")
        return (
            self._by_grids(pieces, grids.tolist())
            if grids is not None
            else self._by_pixels(pieces, given, images)
        )

    def _by_grids(
        self, pieces: list[list[int]], grids: list[list[int]]
    ) -> tuple[list[list[list[int]]], list[Tile]]:
        """The processor tells steps in time, rows and columns of patches, of which the model merges squares."""
        side = merged_side(self.model.processor.video_processor)
        frames: list[list[list[int]]] = []
        tiles: list[Tile] = []
        if len(grids) != len(pieces):
            return self._not_known(f"the processor tells {len(grids)} grids of {len(pieces)} videos")
        for number, (tokens, (steps, tall, wide)) in enumerate(zip(pieces, grids, strict=True), start=1):
            rows, columns = tall // side, wide // side
            if steps * rows * columns != len(tokens):
                return self._not_known(
                    f"video {number} has {len(tokens)} tokens, and by its grid {steps} x {rows} x {columns}"
                )
            size = rows * columns
            frames.append([tokens[step * size : (step + 1) * size] for step in range(steps)])
            tiles += [
                Tile(number, step, rows, columns, tuple(own), -1, VIDEO)
                for step, own in enumerate(frames[-1], start=1)
            ]
        self.told.add("processor")
        return frames, tiles

    def _by_pixels(
        self, pieces: list[list[int]], given: dict[str, Any], images: int
    ) -> tuple[list[list[list[int]]], list[Tile]]:
        """A token is of the frame with whose pixels it changes; with none it is of no frame, with several unknown."""
        key = OF_VIDEOS if OF_VIDEOS in given else PIXELS
        pixels = pixels_of(given, key)
        if pixels is None or (images and key == PIXELS):
            return self._not_known("what the processor gives are not single frames, in rows and columns")
        tokens = [token for video in pieces for token in video]
        before = self.model.decoder_inputs(given)["inputs_embeds"][0, tokens].double()
        moved = torch.stack(
            [self._changes(given, key, frame, tokens, before) for frame in range(len(pixels))]
        )  # (frame, token)
        of = moved > NOTHING * moved.amax(0).amax()
        if bool((of.sum(0) > 1).any()) or not bool(of.any(1).all()):
            return self._not_known("some of its tokens read several frames, or a frame none of them")
        frames: list[list[list[int]]] = []
        tiles: list[Tile] = []
        number = {token: place for place, token in enumerate(tokens)}
        for video, own in enumerate(pieces, start=1):
            inside = of[:, [number[token] for token in own]]
            sources = inside.any(1).nonzero()[:, 0].tolist()
            frames.append(
                [
                    [token for token, there in zip(own, inside[source], strict=True) if there]
                    for source in sources
                ]
            )
            for step, (source, listed) in enumerate(zip(sources, frames[-1], strict=True), start=1):
                shape = rows_and_columns(len(listed), pixels[source].shape[-2:])
                if shape is not None:
                    tiles.append(Tile(video, step, *shape, tuple(listed), source, VIDEO, key))
        self.told.add("pixels")
        return frames, self._in_rows(tiles, frames, given)

    def _in_rows(self, tiles: list[Tile], frames: list[list[list[int]]], given: dict[str, Any]) -> list[Tile]:
        """The tiles, if those of all frames are known and each token follows the pixels of its place."""
        if len(tiles) < sum(map(len, frames)):
            self._not_known("the tokens of a frame fill no rows and columns")
            return []
        probe, firsts = Tiles(self.model), {len(tile.tokens): tile for tile in reversed(tiles)}
        if not all(probe.follows(tile, given) for tile in firsts.values()):
            self._not_known("its tokens do not follow the pixels of their places (a resampler?)")
            return []
        return tiles

    def _changes(
        self, given: dict[str, Any], key: str, frame: int, tokens: list[int], before: torch.Tensor
    ) -> torch.Tensor:
        """How much each token changes with the pixels of one frame."""
        changed = given[key].clone()
        flat = changed.flatten(0, -4)  # a view
        noise = torch.randn(
            flat[frame].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32
        )
        flat[frame] += noise.to(flat)
        states = self.model.decoder_inputs({**given, key: changed})["inputs_embeds"][0, tokens]
        return (states.double() - before).norm(dim=-1)

    def _not_known(self, reason: str) -> tuple[list[list[list[int]]], list[Tile]]:
        self.unknown = self.unknown or reason
        return [], []
