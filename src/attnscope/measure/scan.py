"""`scan`: where does every head look? A corpus through a model, statistics per text, labels, signature."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import verb
from attnscope.capture.load import Loading
from attnscope.capture.modalities import modality_of
from attnscope.capture.parameters import ScanReading
from attnscope.capture.placement import Placement
from attnscope.measure.images import ImageReader, kinds_of_images
from attnscope.measure.labels import kinds_of
from attnscope.measure.passes import OBSERVATION
from attnscope.measure.reader import Reader, ScanSettings, end
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
from attnscope.support.arguments import Count
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.store.runs import RunFolder


@verb()
def scan(
    model: Model | None = None,
    texts: Sources = None,
    *,
    statistics: Sequence[str] | str | None = None,
    band: Count | None = None,
    offsets: Sequence[int] | None = None,
    rows: int | None = None,
    observation: Count = OBSERVATION,
    clusters: int | None = None,
    pool: Count | None = None,
    until: float | None = None,
    show: Sequence[tuple[int, int]] | bool | None = None,
    **reading: Unpack[ScanReading],
) -> xr.Dataset:
    """Measure where every attention head of a model attends, over a corpus.

    Parameters
    ----------
    model
        A folder, a hub id, or a loaded model (with its `tokenizer`, if none lies where it was loaded from), also inside
        a TransformerLens bridge, nnsight's ``LanguageModel``, a ``PeftModel`` or a ``SentenceTransformer``, or as
        `attnscope.capture.load.load_model` gave it. An adapter's folder stands for its base with the adapter. The
        bundled one by default. For any other module: `attnscope.watch`.
    texts
        Strings are texts themselves; `Path` objects are files or folders (``Path("-")`` is standard input); one of
        them, or any iterable: a list, a generator, a column of a table. A string that is or looks like a file's name
        (``"essay.txt"``) is refused; one that is a URL (``"s3://bucket/corpus/"``) names files that fsspec reads. A
        table (a data set of ``datasets``, a frame of pandas, dicts) has its texts in the field `field`. Or token ids,
        each row a window as it stands: what a tokenizer or ``generate`` returns, a tensor, lists of whole numbers.
        Their ``token_type_ids``, ``position_ids`` and ``attention_mask`` (also 4-D) go into the forward pass. Packed
        documents are measured apart: where positions restart, where the mask parts them or counts them, or as
        ``seq_idx`` or ``document_ids`` name them. By default the bundled sample. A file must not change before the
        scan has ended.
        For a vision encoder, images: paths of ``.png``, ``.jpg`` or ``.webp`` files or of folders that hold them,
        Pillow's images, arrays of pixels ``(row, column, 3)`` of 8 bits, or ``pixel_values``: see
        `attnscope.measure`. Of a video encoder, folders of frames, JSON Lines with ``video``, or arrays
        ``(frame, row, column, 3)``: see `attnscope.measure`. Of Whisper, Wav2Vec2 and the like, sounds:
        ``.wav`` files or folders of them, or ``{"array": samples, "sampling_rate": rate}``; see
        `attnscope.measure`. Of a model of vision and
        language, objects with ``text`` (or ``messages``) and ``image`` or ``images``, or JSON Lines of them; see
        `attnscope.measure`.
    statistics
        Names from ``attnscope.measure.quantities.STATISTICS``, as a list or as one string with commas between, among
        which
        ``default`` stands for those that are measured by default (``"default,block_recall"`` adds one): all but
        ``learned_sink``, which few models have, those of distances and of the largest weights, and those that cost a
        second pass over the scores (docs/questions/attention-received.md). The kinds of heads need ``band_sum``,
        ``bin_sum``, ``entropy``, ``first_token``, ``special_tokens`` and ``mean_offset``; with `clusters` the first is
        enough.
    band
        Largest offset of the band: offsets ``-band..band``, by default 10 tokens. Of images, in rows and in columns of
        patches, by default 3.
    offsets
        Offsets (key minus query; negative is left), however far, at which ``weight_at`` is measured: ``[-1, -64]``.
        Each costs what an offset of the band does. See docs/guides/long-contexts.md.
    rows
        Queries of each window to measure, drawn at random (an even number, of `seed`): the model attends by PyTorch's
        fused kernel, and what is not had of all queries by their log-sum-exp is an estimate, with its standard error
        beside it (``entropy_error``). Windows that have no more are measured whole. See docs/guides/long-contexts.md.
    observation
        Queries at the end of each window over which ``recent_top_key``, ``recent_top_10_keys`` and
        ``recent_effective_keys`` are: the observation window of SnapKV and the like. Where a window has no more, they
        are over all of its queries, and a note says so.
    clusters
        Number of labels, found by k-means over profiles, as the papers do. By default labels are named by what
        is measured of each head, and are as many as there are: see `summarize`.
    pool
        Windows, at least, of a pool: statistics are then kept of pools, each as one entry of ``window``, and of windows
        in short, so that a corpus of any size fits on a disk. With `by` a pool is of texts of one value. See
        docs/scale/clusters.md.
    until
        Width of the widest 95% interval of any head's mean share (by documents; over all statistics that are shares of
        weight) at which the scan ends, looked at after 4, 8, 16, ... batches. By default all is measured.
    show
        Keep the attention over the first three windows, for the page: these heads (layer, head) and those that lead the
        rankings token by token, the others in tiles; where there is room, all heads token by token. It is kept in the
        run folder, or with a result in memory in ``.encoding["sample"]``. By default it is kept with a run folder
        and in a notebook; False keeps none, and saves these passes.

    Returns
    -------
    xarray.Dataset
        Dimensions ``window, layer, head, offset, offset_bin, cluster``. Variables,
        per text, layer and head: ``band_sum`` (tr_t), ``bin_sum`` (all offsets, in bins that double: ``bin_first`` to
        ``bin_last``), ``profile`` (mean weight at an offset), ``outside``, ``entropy``
        (nats, mean over rows), ``first_token``, ``special_tokens``, ``mean_offset``, ``offset_spread`` (tokens),
        ``max_weight``, ``gini_simpson`` (1 - sum of squared weights), ``label``; per text ``length``, and with
        `targets` ``target_length``, the number of queries of the decoder's layers; per head ``label_share``,
        ``majority_share``, ... and per text and layer ``equal_band_sum``, ``equal_entropy``, ...: what equal weights
        over the visible tokens give. With `groups` also ``group_weight`` over ``group_query, group_key``, NaN where a
        group is not in a text, and ``equal_group_weight``; of a pool also ``group_rows`` and ``group_pair_rows``, the
        queries that these are means over. With `offsets` also ``weight_at`` and ``equal_weight_at`` over
        ``chosen_offset``: the share of the weight at each, a mean over queries. In cross-attention, queries are target
        tokens and keys source tokens. The attribute ``signature`` holds, as JSON, all that the numbers depend on;
        ``decoder`` says what a decoder beside an encoder read, ``kinds`` how many heads are of which kind, ``capture``
        in which way the model was captured (``registry`` or ``eager weights``), ``way``, ``places``, ``causality`` and
        ``padding`` what is not as expected.
        Of images: see `attnscope.measure.images.ImageReader`.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

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
        device = f"cuda:{os.environ['LOCAL_RANK']}"  # of those that torchrun has started on this machine
    if reading["device_map"] is not None:
        placement = Placement(reading["device_map"], reading["max_memory"])
    elif reading["max_memory"] is not None:
        raise AttnscopeError("max_memory (--max-memory) says nothing without device_map (--device-map): give both")
    if show is None:  # what will have a page has the attention that it shows
        show = reading["out"] is not None or "ipykernel" in sys.modules
    settings = ScanSettings(
        **{name: reading[name] for name in _SHARED},
        task=task,
        processor=reading["tokenizer"],
        loading=Loading(reading["revision"], device, reading["dtype"], reading["trust_remote_code"], placement),
        statistics=statistics,
        band=band,
        offsets=offsets,
        rows=rows,
        observation=observation,
        clusters=clusters,
        pool=pool,
        until=until,
        show=show if not isinstance(show, bool) else () if show else None,
    )
    modality = modality_of(model, texts, field=reading["field"], revision=reading["revision"])
    if modality is None:
        return TextReader(model, texts, settings).scan()
    reader = READERS[type(modality)]
    _reject_of_texts(reader, settings)
    return reader(model, modality, settings).scan()


_SHARED = (ScanSettings.__annotations__.keys() & ScanReading.__annotations__.keys()) - {"task"}
#: What reads each modality beside plain texts.
READERS: dict[type, Callable[[Any, Any, ScanSettings], Reader]] = {
    Images: ImageReader,
    Videos: VideoReader,
    Sounds: SoundReader,
    PicturedTexts: ImageTextReader,
}
_OF_TEXTS = (
    *("batch_size", "pool", "until", "rows", "ray", "targets", "window", "stride", "field", "by_line"),
    *("clusters", "groups", "chat", "chat_template", "words", "by", "offsets"),
)


def _reject_of_texts(reader: Any, settings: ScanSettings) -> None:
    """Reject arguments that images, videos or sounds have no use for."""
    for name in _OF_TEXTS:
        value = isinstance(settings.task, ByRay) if name == "ray" else getattr(settings, name)
        if name not in reader.accepts and value is not None and value is not False:
            flag = "target" if name == "targets" else name.replace("_", "-")
            raise AttnscopeError(f"{name} (--{flag}) is of texts, and these are {reader.reads}: leave it out")


_KINDS: dict[str, Callable[[Mapping[str, Any]], Callable[[xr.Dataset], xr.Dataset] | None]] = {
    "images": kinds_of_images
}


def finish_scan(run: RunFolder, attributes: dict[str, str]) -> xr.Dataset:
    """Name the kinds of heads, and mark the run as complete; the attention that its page shows needs the model."""
    if not run.complete:
        kinds = _KINDS.get(attributes.get("reads", ""), kinds_of)(run.signature.settings or {})
        end(run, kinds, attributes)
    return load_scan(run)
