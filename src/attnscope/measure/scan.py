"""`scan`: where does every head attend? A corpus through a model, statistics per text, labels, signature."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import verb
from attnscope.capture.modalities import modality_of
from attnscope.capture.parameters import OBSERVATION, Loading, ScanReading, ScanSettings
from attnscope.capture.placement import Placement
from attnscope.measure.images import ImageReader, kinds_of_images
from attnscope.measure.labels import kinds_of
from attnscope.measure.reader import Reader, summaries
from attnscope.measure.sounds import SoundReader
from attnscope.measure.stored import load_scan
from attnscope.measure.texts import TextReader
from attnscope.measure.vision import ImageTextReader, VideoReader
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


@verb(observation=OBSERVATION)
def scan(model: Model | None = None, texts: Sources = None, **reading: Unpack[ScanReading]) -> xr.Dataset:
    """Measure where every attention head of a model attends, over a corpus.

    Parameters
    ----------
    model
        A folder, a hub id, or a loaded model (with its `tokenizer`, if it was loaded from elsewhere), also inside a
        TransformerLens bridge, nnsight's ``LanguageModel``, a ``PeftModel`` or a ``SentenceTransformer``, or the result
        of `attnscope.capture.load.load_model`. The folder of an adapter means its base model with the adapter. By
        default the bundled model. For any other module: `attnscope.watch`.
    texts
        Strings are texts; `Path` objects are files or folders (``Path("-")`` is standard input). Give one, or any
        iterable of them: a list, a generator, a column of a table. A string that is or looks like a file name
        (``"essay.txt"``) is rejected; a URL (``"s3://bucket/corpus/"``) names files for fsspec. Tables (a data set of
        ``datasets``, a pandas frame, dicts) have their texts in the column `field`. Token ids, from a tokenizer or
        ``generate``, a tensor or lists, are windows as they are; their ``token_type_ids``, ``position_ids`` and
        ``attention_mask`` (also 4-D) go into the forward pass. Packed documents are measured separately, as marked by
        restarting positions, the mask, ``seq_idx`` or ``document_ids``. By default the bundled sample. Do not change
        a file during a scan.

        Other modalities: images for a vision encoder (``.png``, ``.jpg`` or ``.webp`` files or folders, Pillow images,
        arrays of pixels ``(row, column, 3)`` of 8 bits, or ``pixel_values``); videos for a video encoder (folders of
        frames, JSON Lines with ``video``, arrays ``(frame, row, column, 3)``); sounds for Whisper, Wav2Vec2 and similar
        models (``.wav`` files or folders, or ``{"array": samples, "sampling_rate": rate}``); texts with images for a
        vision-language model (objects with ``text`` or ``messages`` and ``image`` or ``images``, or JSON Lines of
        them). See `attnscope.measure`.

    Returns
    -------
    xarray.Dataset
        Dimensions ``window, layer, head, offset, offset_bin, cluster``. Variables per text, layer and head:
        ``band_sum`` (tr_t), ``bin_sum`` (all offsets, in bins that double: ``bin_first`` to ``bin_last``), ``profile``
        (mean weight at an offset), ``outside``, ``entropy`` (nats, mean over rows), ``first_token``,
        ``special_tokens``, ``mean_offset``, ``offset_spread`` (tokens), ``max_weight``, ``gini_simpson`` (1 - sum of
        squared weights, that of a learned sink included), ``label``. Per text: ``length``, and with `targets`
        ``target_length``, the number of queries of the decoder's layers. Per head: ``label_share``, ``majority_share``,
        ... Per text and layer: ``equal_band_sum``, ``equal_entropy``, ..., under uniform attention over the visible
        tokens. With `groups`: ``group_weight`` over ``group_query, group_key``, NaN if a group is not in a text, and
        ``equal_group_weight``; for a pool also ``group_rows`` and ``group_pair_rows``, the numbers of queries behind
        these means. With `offsets`: ``weight_at`` and ``equal_weight_at`` over ``chosen_offset``, the share of the
        weight at each. In cross-attention, queries are target tokens and keys are source tokens. Attributes:
        ``signature`` (JSON) records everything behind the numbers; ``decoder`` the decoder's input; ``labels`` the
        number of heads with each label; ``capture`` the method (``registry`` or ``eager weights``). ``eager``,
        ``positions``, ``causality`` and ``padding`` are notes. For images: see `attnscope.measure.images.ImageReader`.

    Raises
    ------
    AttnscopeError
        If an argument, the model or a text cannot be used; the message says what to do.

    Examples
    --------
    >>> results = scan(texts=["The tide comes in twice a day, and twice a day it goes out again."])
    >>> dict(results.profile.sizes)
    {'window': 1, 'layer': 3, 'head': 4, 'offset': 21}
    >>> bool((results.band_sum.sum("offset") / results.length + results.outside - 1 < 1e-6).all())
    True
    """
    task = task_for(scan, locals(), in_memory=True)
    texts, model = as_list(texts) if isinstance(texts, Iterator) else texts, MODEL if model is None else model
    device, placement = reading["device"], None
    if device is None and reading["task"] == "env" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"  # for processes that torchrun started on this machine
    if reading["device_map"] is not None:
        placement = Placement(reading["device_map"], reading["max_memory"])
    elif reading["max_memory"] is not None:
        raise AttnscopeError("max_memory (--max-memory) needs device_map (--device-map): give both")
    if (show := reading["show"]) is None:  # results with a page store its attention maps
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
