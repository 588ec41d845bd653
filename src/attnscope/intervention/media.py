"""Images and sounds as inputs of a classifier or an encoder whose heads are ablated or patched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.capture.encoders import load_speech_model, load_vision_model
from attnscope.capture.modalities import modality_of
from attnscope.capture.placement import Loading
from attnscope.capture.processors import hash_of_settings, reader_of
from attnscope.intervention import stack
from attnscope.measure.sounds import pieces_of
from attnscope.opened import Opened
from attnscope.read.images import SUFFIXES as IMAGES
from attnscope.read.images import Images, images_of
from attnscope.read.sounds import SUFFIXES as SOUNDS
from attnscope.read.sounds import Sounds, sounds_of
from attnscope.read.windows import Window
from attnscope.report.signature import short_hash
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.load import Model
    from attnscope.capture.outline import Heads

_DEFAULT = 100  # images or sounds


@dataclass(frozen=True, eq=False)
class Media:
    """Images or sounds as a model reads them."""

    opened: Opened
    loaded: LoadedModel  # the part of the model that reads them
    windows: list[Window]  # their names, with as many tokens as the model has positions
    inputs: list[dict[str, Tensor]]
    settings: dict[str, Any]  # as in the signature


def open_media(model: Model | None, source: Any, reading: Mapping[str, Any], heads: Heads = ()) -> Media | None:
    """The images or sounds of a verb with their model; None for texts."""
    if model is None or source is None:
        return None
    media = modality_of(model, source, field=reading["field"], revision=reading["revision"])
    if not isinstance(media, Images | Sounds):
        return None
    opened = Opened.of(model, source)
    opened.corpus = media
    read: Any = _images if isinstance(media, Images) else _sounds
    loaded, named, settings = read(model, media, reading, heads)
    opened.model = loaded
    limit = reading["limit"] or _DEFAULT
    names, inputs = [], []
    for name, one in islice(named, limit):
        names.append(name)
        inputs.append(one)
    windows = windows_of_media(loaded, names, inputs)
    return Media(opened, loaded, windows, inputs, settings | {"limit": limit, "window": max(map(len, windows))})


@dataclass(frozen=True, eq=False)
class PairMedia:
    """The images or sounds that pairs name, as a model reads them."""

    loaded: LoadedModel
    inputs: dict[str, Tensor]  # by name
    sha256: str


def media_of_pairs(
    model: Model | None, pairs: Sequence[tuple[str, str]], source: Any, reading: Mapping[str, Any]
) -> PairMedia | None:
    """The images or sounds of pairs, if all of them name files of these; in the folder of the pairs, or here."""
    names = [*dict.fromkeys(name for pair in pairs for name in pair)]
    endings = {PurePath(name).suffix.lower() for name in names}
    are_images, are_sounds = endings <= {*IMAGES}, endings <= {*SOUNDS}
    if model is None or not (are_images or are_sounds):
        return None
    (source,) = source if isinstance(source, list | tuple) and len(source) == 1 else (source,)
    folder = source.parent if isinstance(source, Path) else Path()
    paths = [path if (path := folder / name).is_file() else Path(name) for name in names]
    for path in paths:
        if not path.is_file():
            raise AttnscopeError(
                f"found no file {path}, which a pair names; expected it here or next to the file of pairs"
            )
    media: Any = [images_of(path) if are_images else sounds_of(path) for path in paths]
    read: Any = _images if are_images else _sounds
    inputs: dict[str, Tensor] = {}
    loaded: Any = model
    for name, one in zip(names, media, strict=True):
        loaded, named, _ = read(loaded, one, reading)
        values = [value for _, arguments in named for value in arguments.values()]
        if len(values) > 1:
            raise AttnscopeError(f"{name} is longer than the model reads at once: shorten it")
        inputs[name] = values[0]
    for value in inputs.values():
        _positions(loaded, {loaded.model.main_input_name: value})
    return PairMedia(loaded, inputs, short_hash([one.sha256() for one in media]))


def windows_of_media(loaded: LoadedModel, names: Sequence[str], inputs: Sequence[Mapping[str, Tensor]]) -> list[Window]:
    """A window for each input, with as many tokens as the model has positions."""
    lengths: dict[tuple[Any, ...], int] = {}
    windows: list[Window] = []
    for name, one in zip(names, inputs, strict=True):
        shape = tuple(value.shape for value in one.values())
        if shape not in lengths:
            lengths[shape] = _positions(loaded, one)
        count = lengths[shape]
        windows.append(Window((0,) * count, (False,) * count, ((0, 0),) * count, name, 0, ("",) * count))
    return windows


@torch.no_grad()
def _positions(loaded: LoadedModel, inputs: Mapping[str, Tensor]) -> int:
    """The number of positions over which all layers attend."""
    with stack.stacked_passes(loaded.model, skips=False) as passes:
        passes.plain(dict(inputs))
    shapes = {(len(output), output.shape[2]) for output in passes.outputs}
    if len(shapes) != 1 or next(iter(shapes))[0] != 1:
        raise AttnscopeError(
            f"the layers of {type(loaded.model).__name__} attend within windows or over other positions, so its heads "
            "are not ablated or patched. Choose a model whose layers attend over all positions (ViT, CLIP, Wav2Vec2)"
        )
    return next(iter(shapes))[1]


def _images(
    model: Model, images: Images, reading: Mapping[str, Any], heads: Heads = ()
) -> tuple[LoadedModel, Any, dict[str, Any]]:
    how: Any = {"processor": reading["tokenizer"], "loading": Loading.of(reading), "heads": heads}
    vision = load_vision_model(model, need_processor=not images.is_processed, **how)
    loaded = replace(vision.loaded, model=vision.model)
    named = ((image.name, {"pixel_values": vision.pixels(image)}) for image in images)
    return loaded, named, {"tower": vision.tower or None, "processor": reader_of(vision.processor)}


def _sounds(
    model: Model, sounds: Sounds, reading: Mapping[str, Any], heads: Heads = ()
) -> tuple[LoadedModel, Any, dict[str, Any]]:
    speech = load_speech_model(model, processor=reading["tokenizer"], loading=Loading.of(reading), heads=heads)
    loaded = replace(speech.loaded, model=speech.model)
    pieces, reads = pieces_of(sounds, speech, None), speech.model.main_input_name
    named = ((piece.source, {reads: speech.values(piece.samples, piece.name)}) for piece in pieces)
    return loaded, named, {"processor": hash_of_settings(speech.extractor.to_dict())}
