"""Where does every head attend while a vision-language model writes about images? Texts with images as prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnscope.capture.families import configured_length
from attnscope.capture.load import Model
from attnscope.measure.generation import Generation, check_generates, reject_unmatched
from attnscope.measure.generation_pass import GenerationCall
from attnscope.measure.generation_rows import PATCHES
from attnscope.measure.reader import scan_settings
from attnscope.measure.vision import ImageTextReader, Placed, picture_of
from attnscope.read.image_text import PicturedTexts
from attnscope.read.windows import Window
from attnscope.store.run import Batch
from attnscope.support.errors import AttnscopeError

_NEW_TOKENS = 64  # by default
_MOST = 1 << 26  # weights on single patches in a result


class PromptsWithImages(ImageTextReader):
    """Texts with images, or chats up to the assistant's answer, as `attnscope.scan` reads them."""

    to_continue = True


@dataclass(eq=False)
class PicturedGeneration(Generation):
    """Texts with images to continue, one at a time."""

    reader: PromptsWithImages

    def __post_init__(self) -> None:
        self.notes |= {name: self.reader.notes[name] for name in ("tower", "pictures") if name in self.reader.notes}
        sizes = (
            len(self.prompts),
            self.settings["new_tokens"],
            len(self.reader.sites),
            self._heads,
            self._sizes()["patch"],
        )
        self.has_patches = int(np.prod(sizes, dtype=np.int64)) <= _MOST
        if not self.has_patches:
            self.notes["patches"] = (
                f"No weights on single patches: a result has room for {_MOST:,}. Continue fewer texts (--limit), or "
                "write fewer tokens (--new-tokens)."
            )

    @property
    def _heads(self) -> int:
        return max(site.heads for site in self.reader.sites)

    def _sizes(self) -> dict[str, int]:
        return {"patch": max(len(patches_of(placed)) for placed in self.reader.placed)}

    def _call(self, numbers: Sequence[int], prompts: Sequence[Window]) -> GenerationCall:  # noqa: ARG002
        (number,) = numbers
        reader, model = self.reader, self.loaded.model
        _, inputs = reader.inputs_of(reader.texts[number])
        generate: Any = model.generate
        patches = patches_of(reader.placed[number]) if self.has_patches else ()
        arguments = inputs | self._options()
        return GenerationCall(model, generate, (), arguments, reader.pictured.decoder, reader.sites, patches)

    def measure(self, batch: Batch) -> xr.Dataset:
        (number,) = batch.texts
        placed, prompt = self.reader.placed[number], self.prompts[number]
        results = super().measure(batch)
        tokens = results["text_token"].values.copy()
        tokens[0, : len(prompt)] = prompt.tokens  # patches by row and column
        results["text_token"] = results["text_token"].dims, tokens
        if self.has_patches and PATCHES not in results:  # a text without images
            results[PATCHES] = results.entropy.expand_dims(patch=np.arange(self._sizes()["patch"]), axis=-1) * np.nan
        positions = np.full((1, self._sizes()["patch"]), -1)
        patches = patches_of(placed)
        positions[0, : len(patches)] = patches
        words = {"long_name": "Position of each patch in the text", "units": "tokens"}
        results["patch_position"] = ("window", "patch"), positions, words
        return results.assign(self._views(number, placed))

    def _views(self, number: int, placed: Placed) -> dict[str, Any]:
        """The images of a text with their rows and columns of patches, in the order of ``patch_weight``."""
        most = max(len(each.tiles) for each in self.reader.placed)
        if not most:
            return {}
        text = self.reader.texts[number]
        _, inputs = self.reader.inputs_of(text)
        pictures = [picture_of(tile, placed, [text], inputs, self.reader.processors) for tile in placed.tiles]
        missing = most - len(pictures)
        sizes = {
            "view_rows": [tile.rows for tile in placed.tiles],
            "view_columns": [tile.columns for tile in placed.tiles],
        }
        names = {"view_name": [tile.name for tile in placed.tiles], "view_picture": pictures}
        of_views = ("window", "view")
        return {name: (of_views, np.array([[*values, *[0] * missing]])) for name, values in sizes.items()} | {
            name: (of_views, np.array([[*values, *[""] * missing]], dtype=object)) for name, values in names.items()
        }


def patches_of(placed: Placed) -> list[int]:
    """The tokens of a text's images: image by image and row by row where these are known."""
    if placed.tiles:
        return [token for tile in placed.tiles for token in tile.tokens]
    return [token for tokens in (*placed.images, *placed.videos) for token in tokens]


def open_prompts(
    model: Model,
    texts: PicturedTexts,
    reading: Mapping[str, Any],
    new_tokens: int | None,
    patterns: Mapping[str, str],
    batch_size: int,
) -> tuple[PromptsWithImages, int]:
    """The prompts with their model, and the number of new tokens; an error if both do not fit."""
    if reading["dry_run"]:
        raise AttnscopeError("a dry run (--dry-run) plans runs over texts: continue a few images instead (--limit 2)")
    if batch_size != 1:
        raise AttnscopeError(
            f"batch_size (--batch-size) is {batch_size}, but texts with images are continued one at a time: leave it "
            "out"
        )
    if reading["window"] is not None:
        raise AttnscopeError("window (--window) needs plain texts: a text with images is read as a whole")
    taken = {
        name: reading[name] for name in ("groups", "chat", "chat_template", "limit", "tokenizer") if name in reading
    }
    reader = PromptsWithImages(model, texts, scan_settings(reading, **taken))
    loaded = reader.loaded
    check_generates(loaded)
    if loaded.model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{type(loaded.model).__name__} is an encoder-decoder: texts with images are continued by causal models"
        )
    most = configured_length(loaded.model.config.get_text_config())
    longest = reader.reach + 1
    if new_tokens is None:
        new_tokens = _NEW_TOKENS if not most else min(_NEW_TOKENS, max(1, most - longest))
    if most and longest + new_tokens > most:
        raise AttnscopeError(
            f"new_tokens (--new-tokens) is {new_tokens}, and the longest prompt has {longest} tokens with its images, "
            f"but {loaded.name} takes {most} in all: lower it, or use smaller or fewer images"
        )
    reject_unmatched([placed.window for placed in reader.placed], patterns)
    return reader, new_tokens
