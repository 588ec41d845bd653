"""A scan of videos: folders of frames through a video encoder, statistics per video, kinds, signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.capture import load_video_model, signature_of
from attnscope.statistics._asked import BY_DEFAULT, Asked
from attnscope.statistics._catalogue import OF_GROUPS, choose
from attnscope.statistics._keep import measured
from attnscope.statistics._sample import refuse_absent
from attnscope.statistics._second_pass import settings_of
from attnscope.statistics._summary import kinds_of
from attnscope.statistics.videos._measurement import VideoMeasurement

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture import Model
    from attnscope.corpus import Videos


def scan_videos(
    model: Model,
    videos: Videos,
    asked: Asked = BY_DEFAULT,
) -> xr.Dataset:
    """Measure where every attention head of a video encoder looks; `attnscope.scan` calls this for videos.

    Parameters
    ----------
    model
        A video encoder whose layers attend over the whole video (VideoMAE, ViViT, V-JEPA 2), or a classifier on one.
    videos
        From `attnscope.corpus.videos_of`. Of more frames than the model reads, so many at even steps are taken.
    asked
        What any scan is asked for: see `attnscope.scan`. Its ``processor`` is the processor or the folder of one, by
        default the one beside the model; its ``statistics`` and its ``band`` are those of text.

    Returns
    -------
    xarray.Dataset
        As of text with groups, one entry of ``text`` a video, ``source`` its name. Tokens are tubelets, and groups
        (``group_weight``) frames, at most 8, and ``special``, what is no tubelet. Offsets and ``profile`` count tokens
        in the order in which the model reads them, which the attribute ``videos`` tells. ``video_frames``,
        ``video_rows`` and ``video_columns``: how many tubelets there are in time, and in each frame.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> import torch
    >>> from attnscope.corpus import videos_of
    >>> from transformers import VideoMAEConfig, VideoMAEModel
    >>> config = VideoMAEConfig(
    ...     image_size=8, patch_size=4, num_frames=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=1
    ... )
    >>> results = scan_videos(VideoMAEModel(config), videos_of(torch.zeros(1, 4, 3, 8, 8)))
    >>> results.group_query.values.tolist()
    ['frames 1-2', 'frames 3-4']
    """
    names = (*choose(asked.statistics), *OF_GROUPS)
    filmed = load_video_model(
        model, processor=asked.processor, need_processor=not videos.is_processed, loading=asked.loading
    )
    job = VideoMeasurement(filmed, videos, names, asked)
    refuse_absent(asked.show, len(job.sites), max(site.heads for site in job.sites))
    settings = {
        "limit": asked.limit,
        "statistics": list(names),
        "band": job.band,
        "seed": asked.seed,
        "groups": job.grouping.signature,
    }
    settings |= settings_of(names, asked.observation)
    processing = filmed.processing()
    reader = None if processing is None else {"sha256": processing}
    signature = signature_of(
        "scan", filmed.loaded, videos, None, settings, reader=reader, packages=("pillow",)
    )
    attributes = {"model": filmed.loaded.name, "reads": "videos"}
    return measured(job, asked, signature, kinds_of(settings), attributes)
