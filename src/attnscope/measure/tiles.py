"""Which rows and columns of an image its tokens are: by what the processor says, or by the model's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture.families import merged_side
from attnscope.measure.grid import NOTHING
from attnscope.read.picture_parts import IMAGE, VIDEO

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.modalities import PicturedModel
    from attnscope.read.image_text import Expanded

PIXELS, OF_VIDEOS = "pixel_values", "pixel_values_videos"
_IMAGES, _TILED = 4, 5  # dimensions of pixels: (image, channel, row, column), or tiles of images
_PLACES = 5  # that are changed one after another: the corners and the middle
_RIGHT = 4  # of these that must be told by the token that changes most


@dataclass(frozen=True)
class Tile:
    """An image, a frame of a video, or a part of an image that is read by itself, as tokens in rows and columns."""

    # number of the image (or the video) in its text and of the tile (or the frame) in it, from 1; number 0 for a
    # whole image
    image: int
    number: int
    rows: int  # rows and columns of tokens
    columns: int
    tokens: tuple[int, ...]  # row by row
    # number among the pixels that the model is given, from 0; -1 where these are no images, but patches in a row
    source: int
    kind: str = IMAGE  # ``image`` or ``video``
    key: str = PIXELS  # under which the model is given the pixels

    @property
    def name(self) -> str:
        """What the tile is called."""
        part = "frame" if self.kind == VIDEO else "tile"
        return f"{self.kind} {self.image}" + (f" {part} {self.number}" if self.number else "")

    @property
    def names(self) -> dict[int, str]:
        """What each token is called."""
        return {
            token: "{} r{}c{}".format(self.name, *divmod(place, self.columns))
            for place, token in enumerate(self.tokens)
        }


@dataclass(eq=False)
class Tiles:
    """Finds the tiles of texts with images."""

    model: PicturedModel  # which reads them
    unknown: str = ""  # why there are none, where there are none
    told: set[str] = field(default_factory=set[str])  # how they are known: ``processor`` or ``pixels``
    _probed: dict[int, bool] = field(default_factory=dict[int, bool])

    def of(self, expanded: Expanded, given: dict[str, Any]) -> list[Tile]:
        """The tiles of one text; none where they are not known."""
        pieces = expanded.image_tokens()
        if not any(pieces):
            return []
        if expanded.videos and "image_grid_thw" not in given and OF_VIDEOS not in given:
            return self._unknown("the processor puts images and frames among the same pixels")
        grids: Any = given.get("image_grid_thw")
        if grids is not None:
            tiles = self._by_grids(pieces, grids.tolist())
            self.told |= {"processor"} if tiles else set()
        else:
            tiles = self._by_pixels(pieces, given)
            self.told |= {"pixels"} if tiles else set()
        return tiles

    def _by_grids(self, pieces: list[list[int]], grids: list[list[int]]) -> list[Tile]:
        """The processor tells frames, rows and columns of patches, of which the model merges squares."""
        side = merged_side(self.model.processor.image_processor)
        tiles: list[Tile] = []
        if len(grids) != len(pieces):
            return self._unknown(f"the processor tells {len(grids)} grids of {len(pieces)} images")
        for number, (tokens, (frames, rows, columns)) in enumerate(zip(pieces, grids, strict=True), start=1):
            rows, columns = rows // side, columns // side  # noqa: PLW2901
            if frames != 1 or rows * columns != len(tokens):
                return self._unknown(
                    f"image {number} has {len(tokens)} tokens, and by its grid {frames} x {rows} x {columns}"
                )
            tiles.append(Tile(number, 0, rows, columns, tuple(tokens), -1))
        return tiles

    def _by_pixels(self, pieces: list[list[int]], given: dict[str, Any]) -> list[Tile]:
        """As many tokens in a row of the image as its shape says, if each changes with the pixels of its place."""
        pixels = pixels_of(given)
        if pixels is None:
            return self._unknown("what the processor gives are not pixels in rows and columns")
        count, each = len(pixels), sum(map(len, pieces)) / len(pixels)
        if count == len(pieces):
            parts = [(image, 0, tokens) for image, tokens in enumerate(pieces, start=1)]
        elif not each.is_integer() or any(len(tokens) % int(each) for tokens in pieces):
            return self._unknown(
                f"{sum(map(len, pieces))} tokens are of {count} parts of {len(pieces)} image{'s' * (len(pieces) > 1)}, "
                "which do not share them evenly"
            )
        else:
            size = int(each)
            parts = [
                (image, 1 + first // size, tokens[first : first + size])
                for image, tokens in enumerate(pieces, start=1)
                for first in range(0, len(tokens), size)
            ]
        tiles: list[Tile] = []
        for source, (image, number, tokens) in enumerate(parts):
            shape = rows_and_columns(len(tokens), pixels[source].shape[-2:])
            if shape is None:
                height, width = pixels[source].shape[-2:]
                return self._unknown(f"{len(tokens)} tokens fill no rows and columns of {height} x {width} pixels")
            tiles.append(Tile(image, number, *shape, tuple(tokens), source))
        for tile in tiles:
            if len(tile.tokens) not in self._probed:
                self._probed[len(tile.tokens)] = self.follows(tile, given)
            if not self._probed[len(tile.tokens)]:
                return self._unknown("its image tokens do not follow the pixels of their places (a resampler?)")
        return tiles

    def follows(self, tile: Tile, given: dict[str, Any]) -> bool:
        """Whether, where the pixels of one place change, the token of that place changes most."""
        rows, columns = tile.rows - 1, tile.columns - 1
        places = {(0, 0), (0, columns), (rows, 0), (rows, columns), (rows // 2, columns // 2)}
        before = self._states(given, tile)
        right = 0
        for row, column in sorted(places):
            changed = {**given, tile.key: _changed(given[tile.key], tile, row, column, pixels_of(given, tile.key))}
            moved = (self._states(changed, tile) - before).norm(dim=-1)
            right += int(moved.argmax()) == row * tile.columns + column
        return right >= min(_RIGHT, len(places))

    def _states(self, given: dict[str, Any], tile: Tile) -> Tensor:
        """What the decoder reads at each token of a tile."""
        return self.model.decoder_inputs(given)["inputs_embeds"][0, list(tile.tokens)].double()

    def _unknown(self, reason: str) -> list[Tile]:
        self.unknown = self.unknown or reason
        return []


def rows_and_columns(tokens: int, pixels: tuple[int, int] | torch.Size) -> tuple[int, int] | None:
    """So many tokens in rows and columns of the shape of an image, ``(row, column)``; None where they do not fill
    them.
    """
    height, width = pixels
    rows = round((tokens * height / width) ** 0.5)
    columns = tokens // max(1, rows)
    return (rows, columns) if rows * columns == tokens and rows * width == columns * height else None


def pixels_of(given: dict[str, Any], key: str = PIXELS) -> list[Tensor] | None:
    """The images, tiles or frames that a model is given, ``(channel, row, column)``; None for patches in a row."""
    values: Any = given.get(key)
    if not isinstance(values, torch.Tensor) or values.ndim not in (_IMAGES, _TILED):
        return None
    flat = list(values.flatten(0, values.ndim - _IMAGES))
    sizes: Any = given.get("image_sizes") if key == PIXELS else None
    if sizes is None or len(sizes) != len(flat):
        return flat
    shapes = [tuple(int(side) for side in size) for size in sizes]
    fit = all(
        height <= image.shape[1] and width <= image.shape[2]
        for image, (height, width) in zip(flat, shapes, strict=True)
    )
    return [image[:, :height, :width] for image, (height, width) in zip(flat, shapes, strict=True)] if fit else flat


def _changed(values: Tensor, tile: Tile, row: int, column: int, pixels: list[Tensor] | None) -> Tensor:
    """The same pixels with others at one place of a tile."""
    changed = values.clone()
    image = changed.flatten(0, values.ndim - _IMAGES)[tile.source]  # a view
    height, width = (image if pixels is None else pixels[tile.source]).shape[-2:]
    down = slice(row * height // tile.rows, (row + 1) * height // tile.rows)
    right = slice(column * width // tile.columns, (column + 1) * width // tile.columns)
    place = image[:, down, right]
    place += torch.randn(place.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(place)
    return changed


@dataclass(eq=False)
class Frames:
    """Finds the frames of texts with videos, and the rows and columns of each."""

    model: PicturedModel  # which reads them
    unknown: str = ""  # why frames, or rows and columns, are not known, where they are not
    told: set[str] = field(default_factory=set[str])  # how frames are known: ``processor`` or ``pixels``

    def of(self, expanded: Expanded, given: dict[str, Any], images: int) -> tuple[list[list[list[int]]], list[Tile]]:
        """The tokens of each frame of each video of a text, and the frames as tiles; both empty where not known."""
        pieces = expanded.video_tokens()
        if not any(pieces):
            return [], []
        grids: Any = given.get("video_grid_thw")
        return self._by_grids(pieces, grids.tolist()) if grids is not None else self._by_pixels(pieces, given, images)

    def _by_grids(self, pieces: list[list[int]], grids: list[list[int]]) -> tuple[list[list[list[int]]], list[Tile]]:
        """The processor tells steps in time, rows and columns of patches, of which the model merges squares."""
        side = merged_side(self.model.processor.video_processor)
        frames: list[list[list[int]]] = []
        tiles: list[Tile] = []
        if len(grids) != len(pieces):
            return self._unknown(f"the processor tells {len(grids)} grids of {len(pieces)} videos")
        for number, (tokens, (steps, tall, wide)) in enumerate(zip(pieces, grids, strict=True), start=1):
            rows, columns = tall // side, wide // side
            if steps * rows * columns != len(tokens):
                return self._unknown(
                    f"video {number} has {len(tokens)} tokens, and by its grid {steps} x {rows} x {columns}"
                )
            size = rows * columns
            frames.append([tokens[step * size : (step + 1) * size] for step in range(steps)])
            tiles += [
                Tile(number, step, rows, columns, tuple(own), -1, VIDEO) for step, own in enumerate(frames[-1], start=1)
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
            return self._unknown("what the processor gives are not single frames, in rows and columns")
        tokens = [token for video in pieces for token in video]
        before = self.model.decoder_inputs(given)["inputs_embeds"][0, tokens].double()
        moved = torch.stack(
            [self._changes(given, key, frame, tokens, before) for frame in range(len(pixels))]
        )  # (frame, token)
        of = moved > NOTHING * moved.amax(0).amax()
        if bool((of.sum(0) > 1).any()) or not bool(of.any(1).all()):
            return self._unknown("some of its tokens read several frames, or a frame none of them")
        frames: list[list[list[int]]] = []
        tiles: list[Tile] = []
        number = {token: place for place, token in enumerate(tokens)}
        for video, own in enumerate(pieces, start=1):
            inside = of[:, [number[token] for token in own]]
            sources = inside.any(1).nonzero()[:, 0].tolist()
            frames.append(
                [[token for token, there in zip(own, inside[source], strict=True) if there] for source in sources]
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
            self._unknown("the tokens of a frame fill no rows and columns")
            return []
        probe, firsts = Tiles(self.model), {len(tile.tokens): tile for tile in reversed(tiles)}
        if not all(probe.follows(tile, given) for tile in firsts.values()):
            self._unknown("its tokens do not follow the pixels of their places (a resampler?)")
            return []
        return tiles

    def _changes(
        self, given: dict[str, Any], key: str, frame: int, tokens: list[int], before: torch.Tensor
    ) -> torch.Tensor:
        """How much each token changes with the pixels of one frame."""
        changed = given[key].clone()
        flat = changed.flatten(0, -4)  # a view
        noise = torch.randn(flat[frame].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        flat[frame] += noise.to(flat)
        states = self.model.decoder_inputs({**given, key: changed})["inputs_embeds"][0, tokens]
        return (states.double() - before).norm(dim=-1)

    def _unknown(self, reason: str) -> tuple[list[list[list[int]]], list[Tile]]:
        self.unknown = self.unknown or reason
        return [], []
