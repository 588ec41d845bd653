"""A scan of texts with images: through a model of vision and language, statistics per text, kinds, signature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.capture import load_pictured_model, signature_of
from attnscope.corpus import grouping_of
from attnscope.corpus.files import decode_utf8, read_bytes
from attnscope.errors import AttnscopeError
from attnscope.statistics._asked import BY_DEFAULT, Asked
from attnscope.statistics._catalogue import OF_GROUPS, choose
from attnscope.statistics._keep import measured
from attnscope.statistics._sample import refuse_absent
from attnscope.statistics._second_pass import settings_of
from attnscope.statistics._summary import kinds_of
from attnscope.statistics.pictured._measurement import PicturedMeasurement
from attnscope.store import short_hash, tokenizer_sha256

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture import Model
    from attnscope.corpus import Groups, PicturedTexts


def scan_pictured(
    model: Model,
    texts: PicturedTexts,
    asked: Asked = BY_DEFAULT,
    *,
    groups: Groups | None = None,
    chat_template: str | Path | None = None,
) -> xr.Dataset:
    """Measure where every head of a decoder looks that reads texts with images; `attnscope.scan` calls this for them.

    Parameters
    ----------
    model
        A model of vision and language that puts images into its text as tokens (LLaVA, Qwen-VL, Idefics3, ...).
    texts
        From `attnscope.corpus.pictured_of`.
    asked
        What any scan is asked for: see `attnscope.scan`. Its ``processor`` is the model's processor or the folder of
        one, by default the one beside the model.
    groups
        A rule for what is no image: images are always groups of their own. By default text and special tokens, and of
        chats the roles.
    chat_template
        See `attnscope.scan`.

    Returns
    -------
    xarray.Dataset
        As of text with groups. Beside it, per text and image, ``image_first``, ``image_tokens``, ``image_tiles``,
        ``image_rows`` and ``image_columns``, of videos ``video_first``, ``video_tokens``, ``video_frames``,
        ``video_rows`` and ``video_columns``, -1 where not known. The attributes ``pictures`` and ``videos`` say how
        rows and columns are known, or why not.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.corpus import pictured_of
    >>> texts = pictured_of([{"text": "<image> What is this?", "images": [np.zeros((8, 8, 3), np.uint8)]}])
    >>> scan_pictured("bundled", texts)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: EncoderForMaskedLM puts no images into a text, and these texts have images: ...
    """
    names = (*choose(asked.statistics), *OF_GROUPS)
    if chat_template is not None and all(item.messages == () for item in texts):
        raise AttnscopeError("a chat template is given, and none of the texts is a chat: leave it out")
    template = (
        decode_utf8(read_bytes(chat_template), str(chat_template))
        if isinstance(chat_template, Path)
        else chat_template
    )
    grouping = None if groups is None else grouping_of(groups)
    pictured = load_pictured_model(
        model, processor=asked.processor, loading=asked.loading, videos=texts.has_videos
    )
    job = PicturedMeasurement(pictured, texts, names, asked, grouping, template)
    refuse_absent(asked.show, len(job.sites), max(site.heads for site in job.sites))
    settings = {
        "limit": asked.limit,
        "statistics": list(names),
        "band": job.band,
        "seed": asked.seed,
        "groups": job.grouping.signature,
        "template": None if template is None else short_hash(template),
    }
    settings |= settings_of(names, asked.observation)
    reader = {
        "sha256": tokenizer_sha256(pictured.loaded.tokenizer),
        "processor": pictured.processing(),
        "read": job.sha256(),
    }
    signature = signature_of(
        "scan", pictured.loaded, texts, None, settings, reader=reader, packages=("pillow",)
    )
    attributes = {"model": pictured.loaded.name, "reads": "texts with images"}
    return measured(job, asked, signature, kinds_of(settings), attributes)
