"""The patches, tiles or tubelets among tokens, their rows, columns and frames: by processor or changed pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.families import has_class_token, merged_side, patch_size_of, tubelet_of
from attnscope.capture.modalities import PicturedModel
from attnscope.capture.processors import Processor
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.read.image_text import Expanded
from attnscope.read.picture_parts import IMAGE, VIDEO
from attnscope.read.windows import Window

NOTHING = 1e-3  # of the largest change: changes of other tokens below this are rounding


@dataclass(frozen=True)
class Grid:
    """The tokens of one image."""

    rows: int  # rows and columns of patches
    columns: int
    start: int  # the token of the first patch; the others follow row by row
    tokens: int  # all tokens, with patches and others
    class_token: int | None  # number of the class token; None without one

    @property
    def patches(self) -> slice:
        """The tokens that are patches."""
        return slice(self.start, self.start + self.rows * self.columns)

    @property
    def registers(self) -> list[int]:
        """The tokens that are neither patches nor the class token."""
        patches = range(self.tokens)[self.patches]
        return [token for token in range(self.tokens) if token not in patches and token != self.class_token]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of tokens: ``[class]``, ``[register 1]``, ``r0c0`` for the patch in row 0, column 0."""
        named = {token: f"[register {number}]" for number, token in enumerate(self.registers, start=1)}
        if self.class_token is not None:
            named[self.class_token] = "[class]"
        return tuple(
            named.get(token) or "r{}c{}".format(*divmod(token - self.start, self.columns))
            for token in range(self.tokens)
        )


@torch.no_grad()
def grid_of(model: PreTrainedModel, pixels: Float[Tensor, "1 channel row column"]) -> Grid | str:
    """Find the patches: which token of the first layer changes when the pixels of one patch do."""
    size = patch_size_of(model.config)
    if size is None:
        return "its config has no patch_size"
    rows, columns = pixels.shape[2] // size[0], pixels.shape[3] // size[1]
    if not rows or not columns:
        return f"its patch_size {size[0]} x {size[1]} is larger than the image"
    # first, its right and lower neighbours, and the last: they fix the order of rows and columns
    places = [(0, 0), (0, min(1, columns - 1)), (min(1, rows - 1), 0), (rows - 1, columns - 1)]
    probes = pixels.repeat(1 + len(places), 1, 1, 1)
    for probe, (row, column) in zip(probes[1:], places, strict=True):
        probe[:, row * size[0] : (row + 1) * size[0], column * size[1] : (column + 1) * size[1]] += pattern(size, probe)
    seen = first_states(model, {"pixel_values": probes})
    if seen is None:
        return "only its weights are captured, which do not identify the patches"
    if seen.shape[0] != len(probes):
        return f"its first layer attends in {seen.shape[0] / len(probes):g} windows of an image"
    changes = (seen[1:] - seen[:1]).abs().amax(-1)
    places_of = [
        (change > NOTHING * change.amax()).nonzero()[:, 0].tolist() if change.amax() > 0 else [] for change in changes
    ]
    first = places_of[0][0] if places_of[0] else 0
    if places_of != [[first + row * columns + column] for row, column in places]:
        return "in its first layer a patch is not one token, or patches are not in row order"
    is_class = first > 0 and any(has_class_token(module) for module in model.modules())
    return Grid(rows, columns, first, seen.shape[1], 0 if is_class else None)


def pattern(size: Sequence[int], like: Tensor) -> Tensor:
    """The change of a patch: deterministic, and not constant, as a model may subtract the mean."""
    return torch.randn(like.shape[0], *size, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(like)


def first_states(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor | None:
    """Keys and values of the first layer, ``(image, token, width)``; None if they are not captured."""
    states: list[Tensor] = []

    def look(site: Site, call: AttentionCall) -> Tensor:
        if site.index == 0 and call.key.shape[-1]:
            states.append(torch.cat([call.key, call.value], -1).transpose(1, 2).flatten(2).double())
        return output_of(call) if call.key.shape[-1] else call.query

    with watching(model, look, weights_suffice=True):
        model(**inputs)
    return states[0] if states else None


_PIXELS = 448  # on the longer side


def jpeg(pixels: Tensor, processor: Processor) -> str:
    """An image as the model reads it, as base64 of a small JPEG; "" without Pillow."""
    values = pixels.float().cpu()
    mean, spread = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if getattr(processor, "do_normalize", False) and mean is not None and len(mean) == len(values):
        values = values * values.new_tensor(spread)[:, None, None] + values.new_tensor(mean)[:, None, None]
    elif processor is None:
        values = (values - values.amin()) / (values.amax() - values.amin()).clamp_min(1e-9)
    bytes_ = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return _packed(bytes_[..., 0] if bytes_.shape[-1] == 1 else bytes_[..., :3])


def jpeg_of(pixels: np.ndarray, shape: float) -> str:
    """An image ``(row, column, 3)`` of 8 bits, scaled to the aspect ratio of `shape`; "" without Pillow."""
    longer = max(1.0, shape), max(1.0, 1 / shape)
    size = (round(_PIXELS * longer[0] / max(longer)), round(_PIXELS * longer[1] / max(longer)))
    return _packed(pixels, size)


def _packed(pixels: np.ndarray, size: tuple[int, int] | None = None) -> str:
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError:
        return ""
    image = pillow.fromarray(pixels).convert("RGB")
    image = image if size is None else image.resize(size)
    image.thumbnail((_PIXELS, _PIXELS))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue()).decode("ascii")


PIXELS, OF_VIDEOS = "pixel_values", "pixel_values_videos"
_IMAGES, _TILED = 4, 5  # dimensions of pixels: (image, channel, row, column), or tiles of images
_RIGHT = 4  # of 5 changed positions (corners and middle), the number at which the token there must change most


@dataclass(frozen=True)
class Tile:
    """An image, a frame of a video, or a separately read part of an image, as tokens in rows and columns."""

    # number of the image (or the video) in its text and of the tile (or the frame) in it, from 1; number 0 for a
    # whole image
    image: int
    number: int
    rows: int  # rows and columns of tokens
    columns: int
    tokens: tuple[int, ...]  # row by row
    # number among the model's pixels, from 0; -1 if these are a row of patches
    source: int
    kind: str = IMAGE  # ``image`` or ``video``
    key: str = PIXELS  # the model's argument for the pixels

    @property
    def name(self) -> str:
        """The name of the tile."""
        part = "frame" if self.kind == VIDEO else "tile"
        return f"{self.kind} {self.image}" + (f" {part} {self.number}" if self.number else "")

    @property
    def names(self) -> dict[int, str]:
        """The name of each token."""
        return {
            token: "{} r{}c{}".format(self.name, *divmod(position, self.columns))
            for position, token in enumerate(self.tokens)
        }


@dataclass(eq=False)
class Tiles:
    """Finds the tiles of texts with images."""

    model: PicturedModel
    unknown: str = ""  # why there are no tiles
    known_by: set[str] = field(default_factory=set[str])  # ``processor`` or ``pixels``
    _probed: dict[int, bool] = field(default_factory=dict[int, bool])

    def of(self, expanded: Expanded, inputs: dict[str, Any]) -> list[Tile]:
        """The tiles of one text; empty if unknown."""
        pieces = expanded.image_tokens()
        if not any(pieces):
            return []
        if expanded.videos and "image_grid_thw" not in inputs and OF_VIDEOS not in inputs:
            return self._unknown("the processor puts images and frames among the same pixels")
        if "image_grid_thw" in inputs:
            return self._by_grids(IMAGE, pieces, inputs["image_grid_thw"].tolist())
        tiles = self._by_pixels(pieces, inputs)
        self.known_by |= {"pixels"} if tiles else set()
        return tiles

    def _by_grids(self, kind: str, pieces: list[list[int]], grids: list[list[int]]) -> list[Tile]:
        """Tiles from the processor's steps in time, rows and columns of patches; the model merges squares of them."""
        side = merged_side(getattr(self.model.processor, f"{kind}_processor"))
        tiles: list[Tile] = []
        if len(grids) != len(pieces):
            return self._unknown(f"the processor returns {len(grids)} grids for {len(pieces)} {kind}s")
        for number, (tokens, (steps, tall, wide)) in enumerate(zip(pieces, grids, strict=True), start=1):
            rows, columns = tall // side, wide // side
            if steps * rows * columns != len(tokens) or (kind == IMAGE and steps != 1):
                return self._unknown(
                    f"{kind} {number} has {len(tokens)} tokens, but its grid is {steps} x {rows} x {columns}"
                )
            for step in range(steps):
                of_step = tuple(tokens[step * rows * columns : (step + 1) * rows * columns])
                tiles.append(Tile(number, step + 1 if kind == VIDEO else 0, rows, columns, of_step, -1, kind))
        self.known_by.add("processor")
        return tiles

    def _by_pixels(self, pieces: list[list[int]], inputs: dict[str, Any]) -> list[Tile]:
        """Tiles from the shapes of images, if tokens change with the pixels at their positions."""
        pixels = pixels_of(inputs)
        if pixels is None:
            return self._unknown("the processor does not return pixels in rows and columns")
        count, each = len(pixels), sum(map(len, pieces)) / len(pixels)
        if count == len(pieces):
            parts = [(image, 0, tokens) for image, tokens in enumerate(pieces, start=1)]
        elif not each.is_integer() or any(len(tokens) % int(each) for tokens in pieces):
            return self._unknown(
                f"{count} parts of {len(pieces)} image{'s' * (len(pieces) > 1)} do not share {sum(map(len, pieces))} "
                "tokens evenly"
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
                return self._unknown(f"{len(tokens)} tokens do not fill rows and columns of {height} x {width} pixels")
            tiles.append(Tile(image, number, *shape, tuple(tokens), source))
        for tile in tiles:
            if len(tile.tokens) not in self._probed:
                self._probed[len(tile.tokens)] = self.follows(tile, inputs)
            if not self._probed[len(tile.tokens)]:
                return self._unknown("its image tokens do not follow the pixels at their positions (a resampler?)")
        return tiles

    def follows(self, tile: Tile, inputs: dict[str, Any]) -> bool:
        """Whether a change of pixels at a position changes the token of that position most."""
        rows, columns = tile.rows - 1, tile.columns - 1
        places = {(0, 0), (0, columns), (rows, 0), (rows, columns), (rows // 2, columns // 2)}
        tokens = list(tile.tokens)
        before = self._states(inputs, tokens)
        right = 0
        pixels = pixels_of(inputs, tile.key)
        for row, column in sorted(places):
            changed = {**inputs, tile.key: _changed_pixels(inputs[tile.key], tile, row, column, pixels)}
            change = (self._states(changed, tokens) - before).norm(dim=-1)
            right += int(change.argmax()) == row * tile.columns + column
        return right >= min(_RIGHT, len(places))

    def _states(self, inputs: dict[str, Any], tokens: list[int]) -> Tensor:
        """The decoder's input at some tokens."""
        return self.model.decoder_inputs(inputs)["inputs_embeds"][0, tokens].double()

    def _unknown(self, reason: str) -> list[Tile]:
        self.unknown = self.unknown or reason
        return []


def rows_and_columns(tokens: int, pixels: tuple[int, int] | torch.Size) -> tuple[int, int] | None:
    """These tokens in the shape of an image, ``(row, column)``; None if they do not fill it."""
    height, width = pixels
    # rows * columns = tokens and rows / columns = height / width
    rows = round((tokens * height / width) ** 0.5)
    columns = tokens // max(1, rows)
    return (rows, columns) if rows * columns == tokens and rows * width == columns * height else None


def pixels_of(inputs: dict[str, Any], key: str = PIXELS) -> list[Tensor] | None:
    """The model's images, tiles or frames, ``(channel, row, column)``; None for a row of patches."""
    values: Any = inputs.get(key)
    if not isinstance(values, torch.Tensor) or values.ndim not in (_IMAGES, _TILED):
        return None
    flat = list(values.flatten(0, values.ndim - _IMAGES))
    sizes: Any = inputs.get("image_sizes") if key == PIXELS else None
    if sizes is None or len(sizes) != len(flat):
        return flat
    shapes = [tuple(int(side) for side in size) for size in sizes]
    cut = [image[:, :height, :width] for image, (height, width) in zip(flat, shapes, strict=True)]
    fit = all(image.shape[1:] == shape for image, shape in zip(cut, shapes, strict=True))
    return cut if fit else flat


def _changed_pixels(values: Tensor, tile: Tile, row: int, column: int, pixels: list[Tensor] | None) -> Tensor:
    """The pixels with a change at one position of a tile."""
    changed = values.clone()
    image = changed.flatten(0, values.ndim - _IMAGES)[tile.source]  # a view
    height, width = (image if pixels is None else pixels[tile.source]).shape[-2:]
    down = slice(row * height // tile.rows, (row + 1) * height // tile.rows)
    patch = image[:, down, slice(column * width // tile.columns, (column + 1) * width // tile.columns)]
    patch += pattern(patch.shape[-2:], patch)
    return changed


FrameTokens = list[list[list[int]]]  # of each frame of each video


class Frames(Tiles):
    """Finds the frames of texts with videos, and the rows and columns of each."""

    def frames_of(self, expanded: Expanded, inputs: dict[str, Any], images: int) -> tuple[FrameTokens, list[Tile]]:
        """The tokens of each frame of each video of a text, and the frames as tiles; both empty if unknown."""
        pieces = expanded.video_tokens()
        if not any(pieces):
            return [], []
        if "video_grid_thw" not in inputs:
            return self._frames_by_pixels(pieces, inputs, images)
        tiles = self._by_grids(VIDEO, pieces, inputs["video_grid_thw"].tolist())
        videos = range(1, 1 + len(pieces) if tiles else 1)
        return [[list(tile.tokens) for tile in tiles if tile.image == video] for video in videos], tiles

    def _frames_by_pixels(
        self, pieces: list[list[int]], inputs: dict[str, Any], images: int
    ) -> tuple[FrameTokens, list[Tile]]:
        """The frame of each token: the one whose pixels change it; none, or unknown for several."""
        key = OF_VIDEOS if OF_VIDEOS in inputs else PIXELS
        pixels = pixels_of(inputs, key)
        if pixels is None or (images and key == PIXELS):
            return [], self._unknown("the processor does not return single frames in rows and columns")
        tokens = [token for video in pieces for token in video]
        before = self._states(inputs, tokens)
        # (frame, token)
        moved = torch.stack([self._changes(inputs, key, frame, tokens, before) for frame in range(len(pixels))])
        # which tokens a frame moves, next to the largest change of all
        of = moved > NOTHING * moved.amax(0).amax()
        if bool((of.sum(0) > 1).any()) or not bool(of.any(1).all()):
            return [], self._unknown("some of its tokens read several frames, or a frame none of them")
        frames: FrameTokens = []
        tiles: list[Tile] = []
        number = {token: position for position, token in enumerate(tokens)}
        for video, of_video in enumerate(pieces, start=1):
            inside = of[:, [number[token] for token in of_video]]
            sources = inside.any(1).nonzero()[:, 0].tolist()
            frames.append(
                [[token for token, reads in zip(of_video, inside[source], strict=True) if reads] for source in sources]
            )
            for step, (source, listed) in enumerate(zip(sources, frames[-1], strict=True), start=1):
                shape = rows_and_columns(len(listed), pixels[source].shape[-2:])
                if shape is not None:
                    tiles.append(Tile(video, step, *shape, tuple(listed), source, VIDEO, key))
        self.known_by.add("pixels")
        if len(tiles) < sum(map(len, frames)):
            return frames, self._unknown("the tokens of a frame do not fill rows and columns")
        firsts = {len(tile.tokens): tile for tile in reversed(tiles)}
        if not all(self.follows(tile, inputs) for tile in firsts.values()):
            return frames, self._unknown("its tokens do not follow the pixels at their positions (a resampler?)")
        return frames, tiles

    def _changes(self, inputs: dict[str, Any], key: str, frame: int, tokens: list[int], before: Tensor) -> Tensor:
        """The change of each token with the pixels of one frame."""
        changed = inputs[key].clone()
        flat = changed.flatten(0, -4)  # a view
        flat[frame] += pattern(flat.shape[-2:], flat[frame])
        return (self._states({**inputs, key: changed}, tokens) - before).norm(dim=-1)


_MOST = 8  # groups of frames
_BESIDE = "special"


@dataclass(frozen=True)
class TubeletStep(Tile):
    """The tubelets of one step in time, as tokens in rows and columns."""

    together: int = 1  # number of frames in a step

    @property
    def name(self) -> str:
        """The numbers of its frames among those that the model reads, from 1."""
        return _frames((self.number - 1) * self.together + 1, self.number * self.together)


@dataclass(frozen=True)
class Tubelets:
    """The tokens of one video."""

    steps: int  # numbers of tubelets in time, and in each frame
    rows: int
    columns: int
    together: int  # frames in one tubelet
    first: int  # the token of the first tubelet
    strides: tuple[int, int, int]  # tokens to the next tubelet in time, a row below, a column to the right
    tokens: int  # all tokens, with tubelets and others

    def places(self) -> np.ndarray:
        """The token of each tubelet, ``(step, row, column)``."""
        return self.first + np.tensordot(self.strides, np.indices((self.steps, self.rows, self.columns)), axes=1)

    def as_tiles(self, key: str) -> tuple[TubeletStep, ...]:
        """The steps, each over the first of its frames; `key` is the argument for the frames."""
        grid, together = (self.rows, self.columns), self.together
        return tuple(
            TubeletStep(
                1, number + 1, *grid, tuple(of_step.reshape(-1).tolist()), number * together, VIDEO, key, together
            )
            for number, of_step in enumerate(self.places())
        )

    def groups(self) -> list[str]:
        """Names of the groups of frames, at most 8, and of other tokens, if there are any."""
        beside = self.tokens > self.steps * self.rows * self.columns
        return [*dict.fromkeys(map(self._group, range(self.steps))), *[_BESIDE] * beside]

    def _group(self, step: int) -> str:
        """Groups of equal numbers of steps, at most 8."""
        share = -(-self.steps // _MOST)
        first = step // share * share
        return _frames(first * self.together + 1, min(self.steps, first + share) * self.together)

    def window(self, name: str) -> Window:
        """The video as a window of a page; `roles` has the group of frames of each token."""
        tiles = self.as_tiles("")
        names = {token: label for tile in tiles for token, label in tile.names.items()}
        roles = {token: self._group(tile.number - 1) for tile in tiles for token in tile.tokens}
        special = tuple(token not in names for token in range(self.tokens))
        tokens = tuple(names.get(token, "[class]" if token == 0 else "[special]") for token in range(self.tokens))
        groups = tuple(roles.get(token, _BESIDE) for token in range(self.tokens))
        return Window((0,) * self.tokens, special, ((0, 0),) * self.tokens, name, 0, tokens, roles=groups)


@torch.no_grad()
def tubelets_of(model: PreTrainedModel, inputs: dict[str, Any], key: str) -> Tubelets | str:
    """Find the tubelets: the token that changes with the pixels of each, before any attention."""
    size = tubelet_of(model.config)
    if size is None:
        return "its config has no patch_size and tubelet_size"
    video: Tensor = inputs[key]
    counts = [video.shape[1] // size[0], video.shape[3] // size[1], video.shape[4] // size[2]]
    if not all(counts):
        return f"one of its tubelets ({' x '.join(map(str, size))}) is larger than the video"
    before = _states(model, inputs)
    if before is None:
        return "neither its keys nor its embeddings are captured, which identify the tubelets"
    if len(before) != 1:
        return f"its first layer attends in {len(before)} separate parts, not over the whole video"

    def changed(place: tuple[int, ...]) -> int | None:
        """The token that changes with the pixels of one tubelet; None if it is not exactly one."""
        moved = video.clone()
        frames, rows, columns = (slice(at * side, (at + 1) * side) for at, side in zip(place, size, strict=True))
        moved[0, frames, :, rows, columns] += pattern(size[1:], moved[0, 0])
        seen = _states(model, {**inputs, key: moved})
        if seen is None:
            return None
        change = (seen[0] - before[0]).abs().amax(-1)
        tokens = (change > NOTHING * change.amax()).nonzero()[:, 0].tolist()
        return tokens[0] if len(tokens) == 1 else None

    corners = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), tuple(count - 1 for count in counts)]
    corners = [tuple(min(place) for place in zip(corner, (c - 1 for c in counts), strict=True)) for corner in corners]
    tokens = [changed(corner) for corner in corners]
    if any(token is None for token in tokens):
        return "in its first layer a tubelet is not one token"
    first, *nexts, last = (token for token in tokens if token is not None)
    strides = (nexts[0] - first, nexts[1] - first, nexts[2] - first)
    tubelets = Tubelets(counts[0], counts[1], counts[2], size[0], first, strides, before.shape[1])
    places = tubelets.places()
    inside = places.min() >= 0 and places.max() < tubelets.tokens and len(np.unique(places)) == places.size
    if not inside or places[-1, -1, -1] != last:
        return "its tubelets are not in rows, columns and steps"
    return tubelets


def _states(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor | None:
    """The states of tokens before any attention, ``(part, token, width)``: keys, or else embeddings."""
    seen = first_states(model, inputs)
    if seen is not None:
        return seen
    states: Any = getattr(model(**inputs, output_hidden_states=True), "hidden_states", None)
    return states[0].double() if states else None


def _frames(first: int, last: int) -> str:
    return f"frame {first}" if first == last else f"frames {first}-{last}"
