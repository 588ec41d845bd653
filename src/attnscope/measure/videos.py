"""Videos: tubelets of frames through a video encoder, statistics and weights between frames of each video."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.capture.families import tubelet_of
from attnscope.capture.modalities import load_video_model
from attnscope.capture.placement import device_of
from attnscope.measure.grid import NOTHING, first_states, pattern
from attnscope.measure.image_text import Placed, with_views
from attnscope.measure.observer import WindowBatch
from attnscope.measure.quantities import OF_GROUPS, choose
from attnscope.measure.reader import Read, Reader
from attnscope.measure.tiles import Tile
from attnscope.read.groups import GroupedWindows, Grouping
from attnscope.read.picture_parts import VIDEO
from attnscope.read.videos import Video
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.measure.questions import ScanSettings
    from attnscope.read.videos import Clip, Videos


class VideoReader(Reader):
    """Videos of a video encoder: each is read by itself, and all have the same tubelets."""

    reads = called = "videos"
    packages = ("pillow",)

    def __init__(self, model: Model, videos: Videos, asked: ScanSettings) -> None:
        names = (*choose(asked.statistics), *OF_GROUPS)
        self.filmed = load_video_model(
            model, processor=asked.processor, need_processor=not videos.is_processed, loading=asked.loading
        )
        super().__init__(self.filmed.loaded, self.filmed.model, videos, asked, names)
        processing = self.filmed.processing()
        self.reader = None if processing is None else {"sha256": processing}
        self.clips = list(islice(videos, asked.limit))
        self.count = len(self.clips)
        first = self.clips[0]
        given = self.filmed.given(first)
        self.shape = tuple(given[self.filmed.key].shape)
        self._check(first, given)
        self.grouping = Grouping("frames", tuple(self.tubelets.groups()), lambda window: window.roles)
        self.groups = self.grouping.names
        self.reach = self.tubelets.tokens - 1
        self.band = asked.band_within(self.reach, f"videos of {self.tubelets.tokens} tokens")
        self.notes["videos"] = self._said()

    def settings(self) -> dict[str, Any]:
        """What the numbers depend on beside the model and the videos."""
        return super().settings() | {"groups": self.grouping.signature}

    @torch.no_grad()
    def _check(self, first: Clip, given: dict[str, Any]) -> None:
        """Find the tubelets; reject a model that cannot be measured, on the first video."""
        name, whole = type(self.model).__name__, self.loaded.model
        with explaining(
            f"{name} cannot read {first.name}",
            f"It reads {self.filmed.frames} frames, and was given {self.shape[1]}: are number and size as it "
            "takes them?",
        ):
            self.model(**given)
        nothing = Window((), (), (), first.name, 0, ())
        self.verify(Read(WindowBatch.given_as(given, [nothing]), [nothing]))
        tubelets = tubelets_of(self.model, given, self.filmed.key)
        if isinstance(tubelets, str):
            raise AttnscopeError(
                f"{name} is not measured by frames: {tubelets}. Watch its layers with "
                "attnscope.capture.watching.watching"
            )
        self.tubelets = tubelets

        def problem(_: Site, call: AttentionCall) -> str | None:
            parts, queries, keys = call.query.shape[0], call.query.shape[2], call.key.shape[2]
            if (parts, queries, keys) == (1, tubelets.tokens, tubelets.tokens):
                return None
            return (
                f"in {parts} parts from {queries} places to {keys}, and the video has {tubelets.tokens} tokens: its "
                "frames are not known. Watch its layers with attnscope.capture.watching.watching"
            )

        self.reject_other_positions(Read(WindowBatch.given_as(given, [nothing]), [nothing]), problem)
        if self.filmed.leaves_out:
            self.notes["tower"] = (
                f"What is measured is the encoder of {type(whole).__name__}; its predictor does not run."
            )
        elif whole is not self.model:
            self.notes["tower"] = (
                f"What is measured is the encoder of {type(whole).__name__} ({name}), without its head."
            )

    def _said(self) -> str:
        """What a token is, what an offset counts, and which frames were read."""
        tubelets = self.tubelets
        frames = "1 frame" if tubelets.together == 1 else f"{tubelets.together} frames"
        down, right, later = (tubelets.strides[axis] for axis in (1, 2, 0))
        said = (
            f"Tokens are tubelets of {frames}: {tubelets.steps} steps in time, {tubelets.rows} x {tubelets.columns} "
            f"in each (found by changing pixels place by place). Offsets count tokens: {right:+d} is the patch to the "
            f"right, {down:+d} the one below, {later:+d} the same patch one step later; at the end of a row and of a "
            "frame they run on into the next."
        )
        counts = [len(clip.video.frames) if isinstance(clip.video, Video) else len(clip.video) for clip in self.clips]
        if max(counts) > self.shape[1]:
            said += f" Of longer videos {self.shape[1]} frames were read, at even steps."
        return said

    def items(self) -> Sequence[Clip]:
        """The videos."""
        return self.clips

    def read(self, items: Sequence[Clip], numbers: Sequence[int]) -> Read:  # noqa: ARG002
        """One video."""
        (clip,) = items
        given = self.filmed.given(clip)
        shape = tuple(given[self.filmed.key].shape)
        if shape != self.shape:
            frames, _, rows, columns = shape[1:]
            raise AttnscopeError(
                f"{clip.name} is read as {frames} frames of {rows} x {columns} pixels, and the first video as "
                f"{self.shape[1]} of {self.shape[3]} x {self.shape[4]}: give videos that are read alike, or scan them "
                "apart"
            )
        windows = list(GroupedWindows([self.tubelets.window(clip.name)], self.grouping))
        return Read(WindowBatch.given_as(given, windows, device_of(self.model)), windows)

    def sizes(self, items: Sequence[Clip], numbers: Sequence[int]) -> dict[str, Any]:  # noqa: ARG002
        """Steps, rows and columns of tubelets."""
        sizes = {
            "video_frames": ("steps of tubelets in time", self.tubelets.steps),
            "video_rows": ("rows of tubelets in each", self.tubelets.rows),
            "video_columns": ("columns of tubelets in each", self.tubelets.columns),
        }
        return {
            name: ("window", np.array([size]), {"long_name": words, "units": ""})
            for name, (words, size) in sizes.items()
        }

    def illustrated(self, sample: xr.Dataset, items: Sequence[Clip], reads: Sequence[Read]) -> xr.Dataset:  # noqa: ARG002
        """The sample with the first frame of each step."""
        tiles = self.tubelets.as_tiles(self.filmed.key)
        placed = [Placed(read.windows[0], [], [], tiles) for read in reads]
        given = [read.batch.inputs(self.model) for read in reads]
        return with_views(sample, placed, [], given, {VIDEO: self.filmed.processor})


_MOST = 8  # groups of frames
_BESIDE = "special"


@dataclass(frozen=True)
class TubeletStep(Tile):
    """The tubelets of the same frames, as tokens in rows and columns."""

    together: int = 1  # how many frames are read as one

    @property
    def name(self) -> str:
        """Which frames they are, of those that the model reads, from 1."""
        return _frames((self.number - 1) * self.together + 1, self.number * self.together)


@dataclass(frozen=True)
class Tubelets:
    """The tokens of one video."""

    steps: int  # how many tubelets there are in time, and in each frame
    rows: int
    columns: int
    together: int  # frames in one tubelet
    first: int  # the token of the first tubelet
    strides: tuple[int, int, int]  # how many tokens further the next one is in time, a row below, a column to the right
    tokens: int  # all tokens, also those that are no tubelets

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
    """Find the tubelets: which token changes before any attention when the pixels of one do."""
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
    corners = [tuple(min(place) for place in zip(corner, (c - 1 for c in counts), strict=True)) for corner in corners]
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
