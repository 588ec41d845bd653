"""`scan`: where does every head attend? A corpus through a model, statistics per text, labels, signature."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.modalities import modality_of
from attnscope.capture.parameters import Loading, ScanSettings
from attnscope.capture.placement import Placement
from attnscope.measure.images import ImageReader, kinds_of_images
from attnscope.measure.labels import kinds_of
from attnscope.measure.reader import Reader, summaries
from attnscope.measure.sounds import SoundReader
from attnscope.measure.stored import load_scan
from attnscope.measure.texts import TextReader
from attnscope.measure.vision import ImageTextReader, VideoReader
from attnscope.options import ScanReading
from attnscope.read.encoded import Sources
from attnscope.read.image_text import PicturedTexts
from attnscope.read.images import Images
from attnscope.read.sounds import Sounds
from attnscope.read.sources import as_list
from attnscope.read.videos import Videos
from attnscope.store.units import ByRay, task_for
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.store.runs import RunFolder


def scan(model: Model | None, texts: Sources, **reading: Unpack[ScanReading]) -> xr.Dataset:
    """The work of `attnscope.scan`."""
    task = task_for(scan, locals(), in_memory=True)
    texts, model = as_list(texts) if isinstance(texts, Iterator) else texts, MODEL if model is None else model
    device, placement = reading["device"], None
    if device is None and reading["task"] == "env" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"  # for processes that torchrun started on this machine
    if reading["device_map"] is not None:
        placement = Placement(reading["device_map"], reading["max_memory"])
    elif reading["max_memory"] is not None:
        raise AttnscopeError("max_memory (--max-memory) needs device_map (--device-map): give both")
    show = reading["show"]
    if show is None:  # results with a page store its attention maps
        show = reading["out"] is not None or "ipykernel" in sys.modules
    settings = ScanSettings(
        **{name: reading[name] for name in _SHARED},
        task=task,
        processor=reading["tokenizer"],
        loading=Loading(reading["revision"], device, reading["dtype"], reading["trust_remote_code"], placement),
        show=show if not isinstance(show, bool) else () if show else None,
    )
    modality = modality_of(model, texts, field=reading["field"], revision=reading["revision"])
    if modality is None:
        return TextReader(model, texts, settings).scan()
    reader: Any = READERS[type(modality)]
    for name, value in vars(settings).items():
        is_used = isinstance(value, ByRay) if name == "task" else value is not None and value is not False
        if is_used and name not in _COMMON and name not in reader.accepts:
            shown = "ray" if name == "task" else name
            flag = "target" if name == "targets" else shown.replace("_", "-")
            raise AttnscopeError(f"{shown} (--{flag}) needs texts, but the input is {modality.called}: leave it out")
    return reader(model, modality, settings).scan()


_SHARED = (ScanSettings.__annotations__.keys() & ScanReading.__annotations__.keys()) - {"task", "show"}
#: Readers of modalities other than plain text.
READERS: dict[type, Callable[[Any, Any, ScanSettings], Reader]] = {
    Images: ImageReader,
    Videos: VideoReader,
    Sounds: SoundReader,
    PicturedTexts: ImageTextReader,
}
#: Settings that readers of every modality take; each names in `accepts` what it takes of the others.
_COMMON = {
    *("processor", "out", "repair", "limit", "statistics", "band", "observation", "seed", "show", "progress", "loading")
}


_KINDS: dict[str, Callable[[Mapping[str, Any]], Callable[[xr.Dataset], xr.Dataset] | None]] = {
    "images": kinds_of_images
}


def finish_scan(run: RunFolder, attributes: dict[str, str]) -> xr.Dataset:
    """Label the heads and mark the run as complete; the attention maps of its page would need the model."""
    if not run.complete:
        summaries(run, _KINDS.get(attributes.get("reads", ""), kinds_of)(run.signature.settings or {}))
        run.finish(attributes=attributes)
    return load_scan(run)
