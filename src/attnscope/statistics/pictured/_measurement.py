"""The forward passes of a scan of texts with images, one text after the other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.attention import output_of
from attnscope.capture import Team, capture_notes, configured_length, device_of, forward, sees_ahead, watching
from attnscope.corpus import IMAGE, VIDEO, GroupedWindows, Grouping, picture_groups, pictured_window
from attnscope.errors import AttnscopeError
from attnscope.progress import tell_nobody
from attnscope.statistics._labelled import labelled
from attnscope.statistics._map_weights import ROWS, share_room
from attnscope.statistics._one_by_one import one_by_one
from attnscope.statistics._pass import StatisticsObserver
from attnscope.statistics._sample import WEIGHTS, WINDOWS, MapObserver, shown_heads, tile_size
from attnscope.statistics._sample_dataset import sample_dataset
from attnscope.statistics._turns import UNIT
from attnscope.statistics.pictured._frames import Frames
from attnscope.statistics.pictured._groups import grouping_of_pictured
from attnscope.statistics.pictured._reading import PicturedReading, Placed
from attnscope.statistics.pictured._tiles import Tiles
from attnscope.statistics.pictured._views import picture_sizes, with_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import xarray as xr
    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Observer, PicturedModel, Site
    from attnscope.corpus import PicturedText, PicturedTexts, Window
    from attnscope.statistics._asked import Asked


class PicturedMeasurement:
    """The forward passes of one scan of texts with images: each has a length of its own, and is read by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPVisionConfig, LlamaConfig, LlavaConfig
    >>> from transformers import LlavaForConditionalGeneration, LlavaProcessor
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.capture import load_pictured_model
    >>> from attnscope.corpus import pictured_of
    >>> from attnscope.statistics._asked import Asked
    >>> tokenizer = AutoTokenizer.from_pretrained(MODEL)
    >>> _ = tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> config = LlavaConfig(
    ...     vision_config=CLIPVisionConfig(image_size=8, patch_size=4, **sizes),
    ...     text_config=LlamaConfig(vocab_size=len(tokenizer), **sizes),
    ...     image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    ...     vision_feature_layer=-1,
    ... )
    >>> images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    >>> processor = LlavaProcessor(
    ...     images, tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    ... )
    >>> model = load_pictured_model(LlavaForConditionalGeneration(config).eval(), processor=processor)
    >>> texts = pictured_of([{"text": "<image> What?", "images": [np.zeros((8, 8, 3), np.uint8)]}])
    >>> job = PicturedMeasurement(model, texts, ["entropy"], Asked(band=2), None, None)
    >>> job.grouping.names, [int(part.length[0]) for part in job.batches()]
    (('image', 'text', 'special'), [10])
    """

    unit = UNIT

    def __init__(
        self,
        model: PicturedModel,
        texts: PicturedTexts,
        names: Sequence[str],
        asked: Asked,
        grouping: Grouping | None,
        template: str | None,
    ) -> None:
        self.model, self.texts, self.template = model, list(islice(texts, asked.limit)), template
        self.observation = asked.observation
        self.names, self.progress = names, asked.progress or tell_nobody
        self.tiles, self.frames = Tiles(model), Frames(model)
        self.notes: dict[str, str] = {}
        self.team = Team()
        if not self.texts:
            raise AttnscopeError("no text: expected at least one, with its images or videos")
        placed = [self._place(item) for item in self.texts]
        windows, pictures = picture_groups([each.window for each in placed])
        self.grouping = grouping_of_pictured(grouping, windows, pictures)
        windows = list(GroupedWindows(windows, self.grouping))
        self.placed = [replace(each, window=window) for each, window in zip(placed, windows, strict=True)]
        self.images = max(len(item.images) for item in self.texts)
        self.videos = max(len(item.videos) for item in self.texts)
        self.reach = max(map(len, windows)) - 1
        self.band = asked.band_within(self.reach, f"texts of {self.reach + 1} tokens")
        first = max(
            range(len(windows)),
            key=lambda number: bool(self.placed[number].images or self.placed[number].videos),
        )
        _, given = model.read(self.texts[first], template)
        self.sites = model.verify(given, self.texts[first].name)
        self.notes |= capture_notes(model.decoder)
        self._check_places(windows[first], given)
        self.notes["tower"] = (
            f"Measured are the layers of {type(model.decoder).__name__}, which reads the text with the images in it; "
            "the vision tower's own attention is not."
        )
        self._say_tiles()

    def sha256(self) -> str:
        """Hash of what the decoder reads of the texts: chats as the template writes them, too."""
        digest = hashlib.sha256(b"read")
        for placed in self.placed:
            window = placed.window
            digest.update(
                json.dumps([window.ids, window.tokens, window.special, window.roles]).encode() + b"\n"
            )
        return digest.hexdigest()

    def _place(self, item: PicturedText) -> Placed:
        expanded, given = self.model.read(item, self.template)
        most = configured_length(self.model.loaded.model.config.get_text_config())
        if most is not None and 0 < most < len(expanded.ids):
            raise AttnscopeError(
                f"{item.name} has {len(expanded.ids):,} tokens with its images, and the model takes {most:,}: give "
                "smaller or fewer images or frames, or less text"
            )
        frames, of_frames = self.frames.of(expanded, given, len(item.images))
        tiles = (*self.tiles.of(expanded, given), *of_frames)
        names = {token: name for tile in tiles for token, name in tile.names.items()}
        window = pictured_window(expanded, self.model.loaded.tokenizer, names, frames)
        return Placed(window, expanded.image_tokens(), expanded.video_tokens(), tiles)

    def _say_tiles(self) -> None:
        for kind, key, tellers in ((IMAGE, "pictures", self.tiles), (VIDEO, "videos", self.frames)):
            self._say_tiles_of(kind, key, tellers)

    def _say_tiles_of(self, kind: str, key: str, tellers: Tiles | Frames) -> None:
        told = [tile for placed in self.placed for tile in placed.tiles if tile.kind == kind]
        part = "each frame" if kind == VIDEO else "an image"
        grids = sorted({(tile.rows, tile.columns) for tile in told})
        shown = ", ".join(f"{rows} x {columns}" for rows, columns in grids[:3]) + ", ..." * (len(grids) > 3)  # noqa: PLR2004
        if told:
            how = (
                "by the grids that the processor tells"
                if tellers.told == {"processor"}
                else "found by changing pixels place by place"
            )
            self.notes[key] = f"Rows and columns of {kind} tokens: {shown} ({how})." + self._together() * (
                kind == VIDEO
            )
        if tellers.unknown:
            self.notes[key] = " ".join(
                [self.notes.get(key, ""), f"No map over {part}: {tellers.unknown}."]
            ).strip()

    def _together(self) -> str:
        """How many frames that were given are read as one, where that is not 1."""
        shares = {
            len(video.frames) / steps
            for placed, text in zip(self.placed, self.texts, strict=True)
            for number, video in enumerate(text.videos, start=1)
            if (steps := sum((tile.kind, tile.image) == (VIDEO, number) for tile in placed.tiles))
        }
        most = max(shares, default=1)
        return f" A frame is a step of up to {-(-most // 1):g} frames that were given, read as one." * (
            most > 1
        )

    @torch.no_grad()
    def _check_places(self, window: Window, given: dict[str, Any]) -> None:
        """Refuse a decoder that attends over other places than its tokens; find the layers that look back only."""
        ahead: set[int] = set()

        def look(site: Site, call: AttentionCall) -> Tensor:
            if [call.query.shape[2], call.key.shape[2]] != [len(window)] * 2:
                raise AttnscopeError(
                    f"layer {site.index} ({site.name}) of {type(self.model.loaded.model).__name__} attends from "
                    f"{call.query.shape[2]} to {call.key.shape[2]} places, and the text has {len(window)} tokens: "
                    "images that are not in the text itself are not measured"
                )
            if sees_ahead(call) if call.key.shape[-1] else site.kind != "causal":
                ahead.add(site.index)
            return output_of(call) if call.key.shape[-1] else call.query

        with watching(self.model.decoder, look, weights_suffice=True):
            self.model.run(given)
        self.sites = [replace(site, kind="self" if site.index in ahead else "causal") for site in self.sites]
        if ahead:
            self.notes["causality"] = (
                f"In {len(ahead)} of {len(self.sites)} layers some tokens (of an image, as a rule) see later ones: "
                "these layers are of the kind self."
            )

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Measure text after text, but those that are done."""
        return one_by_one(self.texts, self._measure, done, self.progress, count=len(self.texts))

    def _read(self, number: int) -> PicturedReading:
        _, given = self.model.read(self.texts[number], self.template)
        return PicturedReading.of_one(self.placed[number].window, given, device_of(self.model.loaded.model))

    @torch.no_grad()
    def _run(self, reading: PicturedReading, observer: Observer, name: str) -> None:
        model = self.model.loaded.model
        with watching(self.model.decoder, observer, weights_suffice=True):
            forward(model, reading.inputs(model), lambda _: name)

    def watch_first(self, observer: Observer) -> Window:
        """Run the first text with an observer; it is returned as a page shows it."""
        window = self.placed[0].window
        self._run(self._read(0), observer, window.source)
        return window

    def _measure(self, _: PicturedText, number: int) -> xr.Dataset:
        reading, window = self._read(number), self.placed[number].window
        observer = StatisticsObserver(
            self.names, self.band, reading, self.reach, len(self.grouping.names), observation=self.observation
        )
        self._run(reading, observer, window.source)
        results = labelled(
            observer.stacked(),
            self.sites,
            self.band,
            self.reach,
            {"length": np.array([len(window)])},
            [(window.source, window.start)],
            number,
            self.grouping.names,
        )
        return results.assign(picture_sizes(self.placed[number], self.images, self.videos))

    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first texts, and their images."""
        shown = range(min(WINDOWS, len(self.texts)))
        windows = [self.placed[number].window for number in shown]
        longest = min(ROWS, max(map(len, windows)))
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * results.sizes["head"] - len(listed[0])
        observed: list[MapObserver] = []
        pixels: list[dict[str, Any]] = []
        for number, of_window in zip(shown, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            observer = MapObserver(of_window, WEIGHTS, tile, lambda: None)
            reading = self._read(number)
            self._run(reading, observer, windows[number].source)
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
            pixels.append(reading.given)
        kinds = [site.kind for site in self.sites]
        sample = sample_dataset(observed, windows, kinds, results.sizes["head"], asked)
        return with_views(
            sample,
            [self.placed[number] for number in shown],
            [self.texts[number] for number in shown],
            pixels,
            {kind: getattr(self.model.processor, f"{kind}_processor", None) for kind in (IMAGE, VIDEO)},
        )
