"""Videos through a video encoder; texts with images and videos through the decoder of a vision-language model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import xarray as xr

from attnscope.capture.families import configured_length
from attnscope.capture.functional import sees_ahead
from attnscope.capture.load import Model
from attnscope.capture.modalities import load_pictured_model, load_video_model
from attnscope.capture.notes import capture_notes
from attnscope.capture.placement import Loading, device_of
from attnscope.capture.processors import reader_of
from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall
from attnscope.measure.geometry import Frames, Tile, Tiles, jpeg, jpeg_of, pixels_of, tubelets_of
from attnscope.measure.passes import WindowBatch
from attnscope.measure.quantities import OF_GROUPS, choose
from attnscope.measure.reader import Read, Reader
from attnscope.options import ScanReading
from attnscope.read.files import decode_utf8, read_bytes
from attnscope.read.groups import ROLES, GroupedWindows, Grouping, check_names, grouping_of
from attnscope.read.image_text import Expanded, PicturedText, PicturedTexts, picture_groups, pictured_window
from attnscope.read.picture_parts import IMAGE, VIDEO
from attnscope.read.videos import Clip, Video, Videos
from attnscope.read.windows import Window
from attnscope.report.signature import short_hash, tokenizer_sha256
from attnscope.support.errors import AttnscopeError, explaining

Named = dict[str, Any]


class ImageTextReader(Reader):
    """Texts with images, read one at a time."""

    accepts = frozenset({"groups", "chat", "chat_template"})
    packages = ("pillow",)
    to_continue = False  # whether the texts are prompts

    def __init__(self, model: Model, texts: PicturedTexts, settings: ScanReading) -> None:
        names = (*choose(settings["statistics"]), *OF_GROUPS)
        template = settings["chat_template"]
        if template is not None and all(item.messages == () for item in texts):
            raise AttnscopeError("found a chat template, but none of the texts is a chat: leave it out")
        if isinstance(template, Path):
            template = decode_utf8(read_bytes(template), str(template))
        self.template = template
        grouping = None if settings["groups"] is None else grouping_of(settings["groups"])
        self.pictured = load_pictured_model(
            model, processor=settings["tokenizer"], loading=Loading.of(settings), videos=texts.has_videos
        )
        super().__init__(self.pictured.loaded, self.pictured.loaded.model, texts, settings, names)
        self.watched = self.pictured.decoder
        self.texts = list(islice(texts, settings["limit"]))
        self.tiles, self.frames = Tiles(self.pictured), Frames(self.pictured)
        if not self.texts:
            raise AttnscopeError("found no text; expected at least one, with its images or videos")
        self.count = len(self.texts)
        placed = [self._place(item) for item in self.texts]
        windows, pictures = picture_groups([each.window for each in placed])
        self.grouping = grouping_of_pictured(grouping, windows, pictures)
        self.groups = self.grouping.names
        windows = list(GroupedWindows(windows, self.grouping))
        self.placed = [replace(each, window=window) for each, window in zip(placed, windows, strict=True)]
        self.images = max(len(item.images) for item in self.texts)
        self.videos = max(len(item.videos) for item in self.texts)
        self.reach = max(map(len, windows)) - 1
        self.band = self.band_within(self.reach, f"texts of {self.reach + 1} tokens")
        self._check()
        self.notes["tower"] = (
            f"Only {type(self.watched).__name__} is measured, which reads the text with its images, not the vision "
            "tower."
        )
        self._note_tiles()
        lines = (json.dumps([each.ids, each.tokens, each.special, each.roles]).encode() + b"\n" for each in windows)
        self.reader = {
            "sha256": tokenizer_sha256(self.pictured.loaded.tokenizer),
            "processor": self.pictured.processing(),
            # the decoder's input, with chats as the template writes them
            "read": hashlib.sha256(b"read" + b"".join(lines)).hexdigest(),
        }

    def signature_settings(self) -> dict[str, Any]:
        template = None if self.template is None else short_hash(self.template)
        return super().signature_settings() | {"groups": self.grouping.signature, "template": template}

    def inputs_of(self, item: PicturedText) -> tuple[Expanded, Named]:
        """The tokens of a text with its images, and the model's arguments."""
        return self.pictured.read(item, self.template, to_continue=self.to_continue)

    def _place(self, item: PicturedText) -> Placed:
        return self.placed_of(item)[0]

    def placed_of(self, item: PicturedText) -> tuple[Placed, Named]:
        """A text with its images as a window, and the model's arguments."""
        expanded, inputs = self.inputs_of(item)
        most = configured_length(self.model.config.get_text_config())
        if most is not None and 0 < most < len(expanded.ids):
            raise AttnscopeError(
                f"{item.name} has {len(expanded.ids):,} tokens with its images, but the model takes {most:,}: use "
                "smaller or fewer images or frames, or less text"
            )
        frames, of_frames = self.frames.frames_of(expanded, inputs, len(item.images))
        tiles = (*self.tiles.of(expanded, inputs), *of_frames)
        names = {token: name for tile in tiles for token, name in tile.names.items()}
        window = pictured_window(expanded, self.loaded.tokenizer, names, frames)
        return Placed(window, expanded.image_tokens(), expanded.video_tokens(), tiles), inputs

    def views(self, item: PicturedText, placed: Placed, inputs: Named) -> list[Named]:
        """The images among the tokens of a text, for a page."""
        views: list[Named] = []
        for tile in placed.tiles:
            picture = picture_of(tile, placed, [item], inputs, self.processors)
            view = {"name": tile.name, "rows": tile.rows, "columns": tile.columns, "tokens": [*tile.tokens]}
            views.append(view | {"source": f"data:image/jpeg;base64,{picture}" if picture else ""})
        return views

    def views_of_first(self) -> list[dict[str, Any]]:
        return self.views(self.texts[0], *self.placed_of(self.texts[0]))

    def _note_tiles(self) -> None:
        """Note rows and columns of images and frames, or why they are unknown."""
        for kind, key, part, finder in (
            (IMAGE, "pictures", "an image", self.tiles),
            (VIDEO, "videos", "each frame", self.frames),
        ):
            grids = {(tile.rows, tile.columns) for each in self.placed for tile in each.tiles if tile.kind == kind}
            listed = [f"{rows} x {columns}" for rows, columns in sorted(grids)]
            notes: list[str] = []
            if listed:
                sizes = ", ".join(listed[:3]) + ", ..." * (len(listed) > 3)  # noqa: PLR2004
                how = "found by changing pixels patch by patch"
                if finder.known_by == {"processor"}:
                    how = "from the processor"
                notes = [f"Rows and columns of {kind} tokens: {sizes} ({how})."]
                notes += [self._together()] * (kind == VIDEO)
            if finder.unknown:
                notes.append(f"No maps over {part}: {finder.unknown}.")
            if notes:
                self.notes[key] = " ".join(filter(None, notes))

    def _together(self) -> str:
        """A note on the number of input frames in a step, if it is not 1."""
        shares = {
            len(video.frames) / steps
            for placed, text in zip(self.placed, self.texts, strict=True)
            for number, video in enumerate(text.videos, start=1)
            if (steps := sum((tile.kind, tile.image) == (VIDEO, number) for tile in placed.tiles))
        }
        most = max(shares, default=1)
        return f"A frame here is a step of up to {-(-most // 1):g} input frames." * (most > 1)

    def _check(self) -> None:
        """Reject a decoder that attends over other positions than its tokens; find the causal layers."""
        first = max(range(self.count), key=lambda at: bool(self.placed[at].images or self.placed[at].videos))
        read = self.read([self.texts[first]], [first])
        window = read.windows[0]
        self.sites = self.pictured.verify(read.batch.inputs(self.model), window.source)
        self.notes |= capture_notes(self.watched)
        ahead: set[int] = set()

        def problem(site: Site, call: AttentionCall) -> str | None:
            if sees_ahead(call) if call.key.shape[-1] else site.kind != "causal":
                ahead.add(site.index)
            queries, keys = call.query.shape[2], call.key.shape[2]
            if (queries, keys) == (len(window), len(window)):
                return None
            return (
                f"from {queries} to {keys} positions, but the text has {len(window)} tokens: images outside the text "
                "cannot be measured"
            )

        self.reject_other_positions(read, problem)
        self.sites = [replace(site, kind="self" if site.index in ahead else "causal") for site in self.sites]
        if ahead:
            self.notes["causality"] = (
                f"In {len(ahead)} of {len(self.sites)} layers some tokens (usually of an image) see later ones: these "
                "layers count as bidirectional (self)."
            )

    def items(self) -> Iterable[PicturedText]:
        return self.texts

    def read(self, items: Sequence[PicturedText], numbers: Sequence[int]) -> Read:
        _, inputs = self.inputs_of(items[0])
        windows = [self.placed[numbers[0]].window]
        return Read(WindowBatch.with_arguments(inputs, windows, device_of(self.model)), windows)

    def measure_batch(self, items: Sequence[PicturedText], numbers: Sequence[int]) -> xr.Dataset:
        sizes = picture_sizes(self.placed[numbers[0]], self.images, self.videos)
        return super().measure_batch(items, numbers).assign(sizes)

    def illustrated(self, sample: xr.Dataset, items: Sequence[PicturedText], reads: Sequence[Read]) -> xr.Dataset:
        inputs = [read.batch.inputs(self.model) for read in reads]
        return with_views(sample, self.placed[: len(items)], items, inputs, self.processors)

    @property
    def processors(self) -> Named:
        """The processors of images and videos."""
        return {kind: getattr(self.pictured.processor, f"{kind}_processor", None) for kind in (IMAGE, VIDEO)}


@dataclass(frozen=True)
class Placed:
    """A window, the tokens of each of its images and videos, and known frames, rows and columns."""

    window: Window
    images: list[list[int]]
    videos: list[list[int]]
    tiles: tuple[Tile, ...]


_OF_TEXTS = ("text", "special")


def grouping_of_pictured(chosen: Grouping | None, windows: Sequence[Window], images: Sequence[str]) -> Grouping:
    """Groups of images and the chosen ones; by default text and special tokens, or the roles of chats."""
    used = {role for window in windows for role in window.roles}
    if chosen is not None and chosen.signature == "roles" and not used & set(ROLES):
        raise AttnscopeError(
            "roles need chats, but none of the texts is one: give chats (messages), or choose other groups"
        )
    if chosen is None or chosen.signature == "roles":
        kinds = [kind for kind in (_OF_TEXTS, ROLES) if used & set(kind)]
        names = (*images, *(name for kind in kinds for name in kind))
        return Grouping("pictured", names, lambda window: window.roles)
    numbers = {window.source: number for number, window in enumerate(windows)}

    def rule(window: Window) -> list[str]:
        names = chosen.given(window, numbers.get(window.source, 0))
        return [
            role if role in images else name if name not in images else _taken(name)
            for role, name in zip(window.roles, names, strict=True)
        ]

    grouping = replace(chosen, signature=f"pictured {chosen.signature}", rule=rule)
    if chosen.names:
        names = (*images, *(name if name not in images else _taken(name) for name in chosen.names))
        check_names(names)
        return replace(grouping, names=names)
    return grouping.over(windows)


def _taken(name: str) -> NoReturn:
    raise AttnscopeError(f"a group of tokens has the name {name!r}, which is reserved for images: choose another")


def picture_sizes(placed: Placed, images: int, videos: int) -> dict[str, Any]:
    """Positions of the tokens of each image and video of a text; -1 if there is none, or unknown."""
    variables: dict[str, Any] = {}
    for kind, pieces, most, parts, part in (
        (IMAGE, placed.images, images, "tiles", "part"),
        (VIDEO, placed.videos, videos, "frames", "frame"),
    ):
        named = {
            "first": "first token",
            "tokens": "tokens",
            parts: f"{part}s {'that are ' * (kind == VIDEO)}read separately",
            "rows": f"rows of tokens in each {part}",
            "columns": f"columns of tokens in each {part}",
        }
        sizes = np.full((len(named), 1, most), -1)
        for image, tokens in enumerate(pieces):
            tiles = [tile for tile in placed.tiles if (tile.kind, tile.image) == (kind, image + 1)]
            sizes[:2, 0, image] = tokens[0] if tokens else -1, len(tokens)
            if tiles:
                sizes[2:, 0, image] = len(tiles), tiles[0].rows, tiles[0].columns
        for (name, words), values in zip(named.items(), sizes if most else (), strict=False):
            variables[f"{kind}_{name}"] = (("window", kind), values, {"long_name": f"of {kind}s: {words}", "units": ""})
    return variables


def with_views(
    sample: xr.Dataset, placed: Sequence[Placed], texts: Sequence[PicturedText], inputs: list[Named], processors: Named
) -> xr.Dataset:
    """The sample with its images."""
    of = np.full((len(placed), sample.sizes["query"]), -1)
    position = of.copy()
    views: list[tuple[int, Tile, str]] = []
    for window, window_tiles in enumerate(placed):
        for tile in window_tiles.tiles:
            tokens = np.array([token for token in tile.tokens if token < of.shape[1]], dtype=int)
            of[window, tokens], position[window, tokens] = len(views), np.arange(len(tokens))
            picture = picture_of(tile, window_tiles, texts[window : window + 1], inputs[window], processors)
            views.append((window, tile, picture))
    if not views:
        return sample
    return sample.assign_coords(
        view_of=(("window", "query"), of),
        view_position=(("window", "query"), position),
        view_name=("view", np.array([tile.name for _, tile, _ in views], dtype=object)),
        view_picture=("view", np.array([picture for _, _, picture in views], dtype=object)),
        view_window=("view", np.array([window for window, _, _ in views])),
        view_rows=("view", np.array([tile.rows for _, tile, _ in views])),
        view_columns=("view", np.array([tile.columns for _, tile, _ in views])),
    )


def picture_of(tile: Tile, placed: Placed, texts: Sequence[PicturedText], inputs: Named, processors: Named) -> str:
    """A tile as the model reads it, or its part of the text's image, as base64 of a small JPEG."""
    pixels = pixels_of(inputs, tile.key)
    if pixels is not None and tile.source >= 0:
        return jpeg(pixels[tile.source], processors[tile.kind])
    return jpeg_of(_original(texts[0], placed, tile), tile.columns / tile.rows)


def _original(text: PicturedText, placed: Placed, tile: Tile) -> np.ndarray:
    """The input of a tile: an image, or the first of its frames of a video."""
    if tile.kind == IMAGE:
        return text.pixels()[tile.image - 1]
    frames = text.videos[tile.image - 1].pixels()
    together = -(-len(frames) // sum((other.kind, other.image) == (VIDEO, tile.image) for other in placed.tiles))
    return frames[min(len(frames) - 1, (tile.number - 1) * together)]


class VideoReader(Reader):
    """Videos of a video encoder, read one at a time, all with the same tubelets."""

    called = "videos"
    packages = ("pillow",)

    def __init__(self, model: Model, videos: Videos, settings: ScanReading) -> None:
        names = (*choose(settings["statistics"]), *OF_GROUPS)
        self.filmed = load_video_model(
            model, processor=settings["tokenizer"], need_processor=not videos.is_processed, loading=Loading.of(settings)
        )
        super().__init__(self.filmed.loaded, self.filmed.model, videos, settings, names)
        self.reader = reader_of(self.filmed.processor)
        self.clips = list(islice(videos, settings["limit"]))
        self.count = len(self.clips)
        first = self.clips[0]
        inputs = self.filmed.given(first)
        self.shape = tuple(inputs[self.filmed.key].shape)
        self._check(first, inputs)
        self.grouping = Grouping("frames", tuple(self.tubelets.groups()), lambda window: window.roles)
        self.groups = self.grouping.names
        self.reach = self.tubelets.tokens - 1
        self.band = self.band_within(self.reach, f"videos of {self.tubelets.tokens} tokens")
        self.notes["videos"] = self._note()

    def signature_settings(self) -> dict[str, Any]:
        return super().signature_settings() | {"groups": self.grouping.signature}

    @torch.no_grad()
    def _check(self, first: Clip, inputs: dict[str, Any]) -> None:
        """Find the tubelets; reject a model that cannot be measured, on the first video."""
        name, whole = type(self.model).__name__, self.loaded.model
        with explaining(
            f"{name} cannot read {first.name}",
            f"It reads {self.filmed.frames} frames, and the input has {self.shape[1]}: check their number and size",
        ):
            self.model(**inputs)
        nothing = Window((), (), (), first.name, 0, ())
        self.verify(Read(WindowBatch.with_arguments(inputs, [nothing]), [nothing]))
        tubelets = tubelets_of(self.model, inputs, self.filmed.key)
        if isinstance(tubelets, str):
            raise AttnscopeError(
                f"{name} cannot be measured by frames: {tubelets}. Use attnscope.capture.watching.watching for its "
                "layers"
            )
        self.tubelets = tubelets

        def problem(_: Site, call: AttentionCall) -> str | None:
            parts, queries, keys = call.query.shape[0], call.query.shape[2], call.key.shape[2]
            if (parts, queries, keys) == (1, tubelets.tokens, tubelets.tokens):
                return None
            return (
                f"in {parts} parts from {queries} positions to {keys}, but the video has {tubelets.tokens} tokens: its "
                "frames are unknown. Use attnscope.capture.watching.watching for its layers"
            )

        self.reject_other_positions(Read(WindowBatch.with_arguments(inputs, [nothing]), [nothing]), problem)
        if self.filmed.leaves_out:
            self.notes["tower"] = f"Only the encoder of {type(whole).__name__} is measured; its predictor does not run."
        elif whole is not self.model:
            self.notes["tower"] = f"Only the encoder of {type(whole).__name__} ({name}) is measured, without its head."

    def _note(self) -> str:
        """A note on tokens, offsets and frames."""
        tubelets = self.tubelets
        frames = "1 frame" if tubelets.together == 1 else f"{tubelets.together} frames"
        down, right, later = (tubelets.strides[axis] for axis in (1, 2, 0))
        note = (
            f"Tokens are tubelets of {frames}: {tubelets.steps} steps in time, {tubelets.rows} x {tubelets.columns} "
            f"in each (found by changing pixels patch by patch). Offsets count tokens: {right:+d} is the patch to the "
            f"right, {down:+d} the one below, {later:+d} the same patch one step later; they continue in the next row "
            "and frame."
        )
        counts = [len(clip.video.frames) if isinstance(clip.video, Video) else len(clip.video) for clip in self.clips]
        if max(counts) > self.shape[1]:
            note += f" Longer videos were sampled to {self.shape[1]} frames at even steps."
        return note

    def items(self) -> Sequence[Clip]:
        return self.clips

    def read(self, items: Sequence[Clip], numbers: Sequence[int]) -> Read:  # noqa: ARG002
        (clip,) = items
        inputs = self.filmed.given(clip)
        shape = tuple(inputs[self.filmed.key].shape)
        if shape != self.shape:
            frames, _, rows, columns = shape[1:]
            raise AttnscopeError(
                f"{clip.name} is read as {frames} frames of {rows} x {columns} pixels; expected {self.shape[1]} of "
                f"{self.shape[3]} x {self.shape[4]}, as in the first video: use videos of one size, or scan them "
                "separately"
            )
        windows = list(GroupedWindows([self.tubelets.window(clip.name)], self.grouping))
        return Read(WindowBatch.with_arguments(inputs, windows, device_of(self.model)), windows)

    def measure_batch(self, items: Sequence[Clip], numbers: Sequence[int]) -> xr.Dataset:
        sizes = {
            f"video_{name}": ("window", np.array([size]), {"long_name": words, "units": ""})
            for name, words, size in (
                ("frames", "steps of tubelets in time", self.tubelets.steps),
                ("rows", "rows of tubelets in each", self.tubelets.rows),
                ("columns", "columns of tubelets in each", self.tubelets.columns),
            )
        }
        return super().measure_batch(items, numbers).assign(sizes)

    def illustrated(self, sample: xr.Dataset, items: Sequence[Clip], reads: Sequence[Read]) -> xr.Dataset:  # noqa: ARG002
        tiles = self.tubelets.as_tiles(self.filmed.key)
        placed = [Placed(read.windows[0], [], [], tiles) for read in reads]
        inputs = [read.batch.inputs(self.model) for read in reads]
        return with_views(sample, placed, [], inputs, {VIDEO: self.filmed.processor})
