"""The forward passes of a scan of videos, one video after the other."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.attention import output_of
from attnscope.capture import Team, VideoModel, capture_notes, device_of, forward, verify, watching
from attnscope.corpus import VIDEO, GroupedWindows, Grouping, Video
from attnscope.errors import AttnscopeError, explaining
from attnscope.progress import tell_nobody
from attnscope.statistics._labelled import labelled
from attnscope.statistics._map_weights import ROWS, share_room
from attnscope.statistics._one_by_one import one_by_one
from attnscope.statistics._pass import StatisticsObserver
from attnscope.statistics._sample import WEIGHTS, WINDOWS, MapObserver, shown_heads, tile_size
from attnscope.statistics._sample_dataset import sample_dataset
from attnscope.statistics._turns import UNIT
from attnscope.statistics.pictured import PicturedReading, Placed, with_views
from attnscope.statistics.videos._tubelets import Tubelets, tubelets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import xarray as xr
    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Observer, Site
    from attnscope.corpus import Clip, Videos, Window
    from attnscope.statistics._asked import Asked


class VideoMeasurement:
    """The forward passes of one scan of videos: each is read by itself, and all have the same tubelets.

    Examples
    --------
    >>> from transformers import VideoMAEConfig, VideoMAEModel
    >>> from attnscope.capture import load_video_model
    >>> from attnscope.corpus import videos_of
    >>> from attnscope.statistics._asked import Asked
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> encoder = VideoMAEModel(VideoMAEConfig(image_size=8, patch_size=4, num_frames=4, **sizes)).eval()
    >>> videos = videos_of(torch.zeros(1, 4, 3, 8, 8))
    >>> job = VideoMeasurement(load_video_model(encoder, need_processor=False), videos, ["entropy"], Asked(band=1))
    >>> job.grouping.names, next(job.batches()).entropy.shape
    (('frames 1-2', 'frames 3-4'), (1, 1, 2))
    """

    unit = UNIT

    def __init__(self, model: VideoModel, videos: Videos, names: Sequence[str], asked: Asked) -> None:
        self.model, self.clips = model, list(islice(videos, asked.limit))
        self.names, self.progress = names, asked.progress or tell_nobody
        self.observation = asked.observation
        self.notes: dict[str, str] = {}
        self.team = Team()
        first = self.clips[0]
        given = model.given(first)
        self.tubelets = self._checked(first, given)
        self.shape = tuple(given[model.key].shape)
        self.grouping = Grouping("frames", tuple(self.tubelets.groups()), lambda window: window.roles)
        self.reach = self.tubelets.tokens - 1
        self.band = asked.band_within(self.reach, f"videos of {self.tubelets.tokens} tokens")
        self.notes["videos"] = self._said()

    @torch.no_grad()
    def _checked(self, first: Clip, given: dict[str, Any]) -> Tubelets:
        """Refuse a model that cannot be measured, on the first video; say what is not as expected."""
        model, name = self.model.model, type(self.model.model).__name__
        read = given[self.model.key].shape[1]
        with explaining(
            f"{name} cannot read {first.name}",
            f"It reads {self.model.frames} frames, and was given {read}: are number and size as it takes them?",
        ):
            model(**given)
        self.sites, _ = verify(model, given, text=first.name, weights_suffice=True)
        self.notes |= capture_notes(model)
        tubelets = tubelets_of(model, given, self.model.key)
        if isinstance(tubelets, str):
            raise AttnscopeError(
                f"{name} is not measured by frames: {tubelets}. Watch its layers with attnscope.capture.watching"
            )
        self._check_places(tubelets, given)
        whole = type(self.model.loaded.model).__name__
        if self.model.leaves_out:
            self.notes["tower"] = f"What is measured is the encoder of {whole}; its predictor does not run."
        elif self.model.loaded.model is not model:
            self.notes["tower"] = f"What is measured is the encoder of {whole} ({name}), without its head."
        return tubelets

    def _check_places(self, tubelets: Tubelets, given: dict[str, Any]) -> None:
        """Refuse a model that attends over other places than its tokens."""

        def look(site: Site, call: AttentionCall) -> Tensor:
            sizes = [call.query.shape[0], call.query.shape[2], call.key.shape[2]]
            if sizes != [1, tubelets.tokens, tubelets.tokens]:
                raise AttnscopeError(
                    f"layer {site.index} ({site.name}) of {type(self.model.model).__name__} attends in {sizes[0]} "
                    f"parts from {sizes[1]} places to {sizes[2]}, and the video has {tubelets.tokens} tokens: its "
                    "frames are not known. Watch its layers with attnscope.capture.watching"
                )
            return output_of(call) if call.key.shape[-1] else call.query

        self._watch(given, look, "the first video")

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
        counts = [
            len(clip.video.frames) if isinstance(clip.video, Video) else len(clip.video)
            for clip in self.clips
        ]
        if max(counts) > self.shape[1]:
            said += f" Of longer videos {self.shape[1]} frames were read, at even steps."
        return said

    def _watch(self, given: dict[str, Any], observer: Observer, name: str) -> None:
        with watching(self.model.model, observer, weights_suffice=True):
            forward(self.model.model, given, lambda _: name)

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Measure video after video, but those that are done."""
        return one_by_one(
            self.clips, self._measure, done, self.progress, count=len(self.clips), called="videos"
        )

    def _read(self, clip: Clip) -> tuple[PicturedReading, Window]:
        """One video, and as a window.

        Raises
        ------
        AttnscopeError
            If it has other tubelets than the first.
        """
        given = self.model.given(clip)
        shape = tuple(given[self.model.key].shape)
        if shape != self.shape:
            frames, _, rows, columns = shape[1:]
            raise AttnscopeError(
                f"{clip.name} is read as {frames} frames of {rows} x {columns} pixels, and the first video as "
                f"{self.shape[1]} of {self.shape[3]} x {self.shape[4]}: give videos that are read alike, or scan them "
                "apart"
            )
        (window,) = GroupedWindows([self.tubelets.window(clip.name)], self.grouping)
        return PicturedReading.of_one(window, given, device_of(self.model.model)), window

    @torch.no_grad()
    def _measure(self, clip: Clip, number: int) -> xr.Dataset:
        reading, window = self._read(clip)
        observer = StatisticsObserver(
            self.names, self.band, reading, self.reach, len(self.grouping.names), observation=self.observation
        )
        self._watch(reading.given, observer, clip.name)
        results = labelled(
            observer.stacked(),
            self.sites,
            self.band,
            self.reach,
            {"length": np.array([len(window)])},
            [(clip.name, 0)],
            number,
            self.grouping.names,
        )
        sizes = {
            "video_frames": ("steps of tubelets in time", self.tubelets.steps),
            "video_rows": ("rows of tubelets in each", self.tubelets.rows),
            "video_columns": ("columns of tubelets in each", self.tubelets.columns),
        }
        return results.assign(
            {
                name: ("text", np.array([size]), {"long_name": words, "units": ""})
                for name, (words, size) in sizes.items()
            }
        )

    @torch.no_grad()
    def watch_first(self, observer: Observer) -> Window:
        """Run the first video with an observer; it is returned as a page shows it."""
        reading, window = self._read(self.clips[0])
        self._watch(reading.given, observer, window.source)
        return window

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first videos, and the first frame of each of their steps."""
        read = [self._read(clip) for clip in self.clips[:WINDOWS]]
        windows = [window for _, window in read]
        longest = min(ROWS, self.tubelets.tokens)
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * results.sizes["head"] - len(listed[0])
        observed: list[MapObserver] = []
        for (reading, window), of_window in zip(read, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            observer = MapObserver(of_window, WEIGHTS, tile, lambda: None)
            self._watch(reading.given, observer, window.source)
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        kinds = [site.kind for site in self.sites]
        sample = sample_dataset(observed, windows, kinds, results.sizes["head"], asked)
        tiles = self.tubelets.as_tiles(self.model.key)
        placed = [Placed(window, [], [], tiles) for window in windows]
        given = [reading.given for reading, _ in read]
        return with_views(sample, placed, [], given, {VIDEO: self.model.processor})
