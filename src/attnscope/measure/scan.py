"""`scan`: where does every head attend? A corpus through a model, statistics per text, labels, signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnscope.measure.images import ImageReader, kinds_of_images
from attnscope.measure.labels import kinds_of
from attnscope.measure.reader import Reader, summaries
from attnscope.measure.sounds import SoundReader
from attnscope.measure.stored import load_scan
from attnscope.measure.vision import ImageTextReader, VideoReader
from attnscope.options import EveryScanReading, ScanReading
from attnscope.read.image_text import PicturedTexts
from attnscope.read.images import Images
from attnscope.read.sounds import Sounds
from attnscope.read.videos import Videos
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.store.runs import RunFolder


#: Readers of modalities other than plain text.
READERS: dict[type, Callable[[Any, Any, ScanReading], Reader]] = {
    Images: ImageReader,
    Videos: VideoReader,
    Sounds: SoundReader,
    PicturedTexts: ImageTextReader,
}


def reader_of(model: Model, modality: Any, settings: ScanReading) -> Reader:
    """The reader of a modality other than plain text; options that it does not accept are rejected."""
    reader: Any = READERS[type(modality)]
    for name, value in settings.items():
        is_accepted = name == "task" or name in EveryScanReading.__annotations__ or name in reader.accepts
        if value is not None and value is not False and not is_accepted:
            flag = "target" if name == "targets" else name.replace("_", "-")
            raise AttnscopeError(f"{name} (--{flag}) needs texts, but the input is {modality.called}: leave it out")
    return reader(model, modality, settings)


_KINDS: dict[str, Callable[[Mapping[str, Any]], Callable[[xr.Dataset], xr.Dataset] | None]] = {
    "images": kinds_of_images
}


def finish_scan(run: RunFolder, attributes: dict[str, str]) -> xr.Dataset:
    """Label the heads and mark the run as complete; the attention maps of its page would need the model."""
    if not run.complete:
        summaries(run, _KINDS.get(attributes.get("reads", ""), kinds_of)(run.signature.settings or {}))
        run.finish(attributes=attributes)
    return load_scan(run)
