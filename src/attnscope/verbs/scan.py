"""`attnscope.scan`."""

from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import INPUT, OBSERVATION, ModelsOrBundled, ScanReading, Sources
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb(
    observation=OBSERVATION,
    examples=(
        ("attnscope scan", "the bundled model on the bundled text"),
        ("attnscope scan gpt2 corpus.txt --limit 100 --window 512", "a model of the hub on a file"),
        ("attnscope scan ./my-model corpus/ --out run --task 1/4", "a quarter of a large run"),
    ),
)
def scan(
    model: ModelsOrBundled = None,
    texts: Annotated[
        Sources,
        INPUT,
        "Read these texts, in quotes, or files, folders or URLs of text, as .txt .md .jsonl .csv .parquet, or of "
        "images (.png .jpg .webp), frames or sounds (.wav .flac .ogg .mp3); - is standard input. Strings are texts; "
        '`Path` objects are files or folders (``Path("-")`` is standard input). Give one, or any iterable of them: a '
        'list, a generator, a column of a table. A string that is or looks like a file name (``"essay.txt"``) is '
        'rejected; a URL (``"s3://bucket/corpus/"``) names files for fsspec. Tables (a data set of ``datasets``, a '
        "pandas frame, dicts) have their texts in the column `field`. Token ids, from a tokenizer or ``generate``, a "
        "tensor or lists, are windows as they are; their ``token_type_ids``, ``position_ids`` and "
        "``attention_mask`` (also 4-D) go into the forward pass. Packed documents are measured separately, as "
        "marked by restarting positions, the mask, ``seq_idx`` or ``document_ids``. By default the bundled sample. "
        "Do not change a file during a scan.\n\nOther modalities: images for a vision encoder (``.png``, ``.jpg`` "
        "or ``.webp`` files or folders, Pillow images, arrays of pixels ``(row, column, 3)`` of 8 bits, or "
        "``pixel_values``); videos for a video encoder (folders of frames, JSON Lines with ``video``, arrays "
        "``(frame, row, column, 3)``); sounds for Whisper, Wav2Vec2 and similar models (files or folders, "
        'or ``{"array": samples, "sampling_rate": rate}``); texts with images for a vision-language model (objects '
        "with ``text`` or ``messages`` and ``image`` or ``images``, or JSON Lines of them). See "
        "`attnscope.measure`.",
    ] = None,
    **reading: Unpack[ScanReading],
) -> "xr.Dataset":
    """Measure where every attention head attends, in texts, images, videos or sounds.

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
    import os
    import sys
    from collections.abc import Iterator

    import torch

    from attnscope.bundled import MODEL
    from attnscope.capture.modalities import modality_of
    from attnscope.measure.scan import reader_of
    from attnscope.measure.texts import TextReader
    from attnscope.read.images import Images
    from attnscope.read.sources import as_list
    from attnscope.store.units import task_for
    from attnscope.support.errors import AttnscopeError

    task = task_for(scan, locals(), in_memory=True)
    local_rank = os.environ.get("LOCAL_RANK") if reading["task"] == "env" and torch.cuda.is_available() else None
    if reading["device"] is None and local_rank is not None:  # for processes that torchrun started on this machine
        reading["device"] = f"cuda:{local_rank}"
    if reading["show"] is None:  # results with a page store its attention maps
        reading["show"] = reading["out"] is not None or "ipykernel" in sys.modules

    texts = as_list(texts) if isinstance(texts, Iterator) else texts
    model = MODEL if model is None else model
    modality = modality_of(model, texts, field=reading["field"], revision=reading["revision"])
    if not isinstance(modality, Images | None) and reading["dry_run"]:
        raise AttnscopeError(
            f"a dry run (--dry-run) plans runs over texts and images: scan a few {modality.called} instead (--limit)"
        )
    if modality is None:
        return TextReader(model, texts, reading).scan(task)
    return reader_of(model, modality, reading).scan(task)
