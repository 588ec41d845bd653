"""A scan of images: a folder of them through a vision encoder, statistics per image, kinds, signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.capture import load_vision_model, signature_of
from attnscope.statistics._asked import BY_DEFAULT, Asked
from attnscope.statistics._catalogue import OF_ANY_TOKENS, PATCH_STATISTICS, choose
from attnscope.statistics._keep import measured
from attnscope.statistics._sample import refuse_absent
from attnscope.statistics.images._kinds import kinds_of_images
from attnscope.statistics.images._measurement import ImageMeasurement

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture import Model
    from attnscope.corpus import Images

KNOWN = (*PATCH_STATISTICS, *OF_ANY_TOKENS)
DEFAULT = tuple(name for name in KNOWN if name != "learned_sink")


def scan_images(
    model: Model,
    images: Images,
    asked: Asked = BY_DEFAULT,
) -> xr.Dataset:
    """Measure where every attention head of a vision encoder looks; `attnscope.scan` calls this for images.

    Parameters
    ----------
    model
        A vision encoder, or a model of images and text, whose vision tower is measured.
    images
        From `attnscope.corpus.images_of`.
    asked
        What any scan is asked for: see `attnscope.scan`. Its ``processor`` is the image processor or the folder of one,
        by default the one beside the model; its ``statistics`` are names from
        `attnscope.statistics.PATCH_STATISTICS`, ``entropy``, ``max_weight``, ``gini_simpson`` or ``learned_sink``
        (not by default); its ``band`` is the largest offset of the profile in rows and in columns, by default 3.

    Returns
    -------
    xarray.Dataset
        Dimensions ``text, layer, head, row_offset, column_offset``; each entry of ``text`` is one image, ``source`` its
        name. What is said of patches is a mean over the queries that are patches: ``patch_profile``, ``same_row``,
        ``same_column``, ``class_token``, ``registers`` (shares), ``patch_distance``, ``row_offset_mean``,
        ``column_offset_mean`` (patches); see `measure_patches`. ``entropy``, ``max_weight`` and ``gini_simpson`` are
        over all queries. Beside them ``equal_patch_profile``, ...: what equal weights give; per image ``length``
        (tokens), ``rows``, ``columns``; and what `summarize_images` gives. The attributes are those of a scan of text,
        ``reads`` says ``images``, and ``tower``, ``pooling`` and ``patches`` say what is not measured, or elsewhere.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.

    Examples
    --------
    >>> import torch
    >>> from attnscope.corpus import images_of
    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(image_size=8, patch_size=2, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> results = scan_images(ViTModel(config), images_of(torch.zeros(1, 3, 8, 8)), Asked(band=1))
    >>> dict(results.patch_profile.sizes)
    {'text': 1, 'layer': 1, 'head': 2, 'row_offset': 3, 'column_offset': 3}
    """
    names = choose(asked.statistics, KNOWN, DEFAULT, " of images")
    vision = load_vision_model(
        model, processor=asked.processor, need_processor=not images.is_processed, loading=asked.loading
    )
    job = ImageMeasurement(vision, images, names, asked)
    refuse_absent(asked.show, len(job.sites), max(site.heads for site in job.sites))
    settings = {
        "tower": vision.tower or None,
        "limit": asked.limit,
        "batch_size": job.batch_size,
        "statistics": list(job.names),
        "band": job.band,
        "seed": asked.seed,
    }
    processing = vision.processing()
    reader = None if processing is None else {"sha256": processing}
    signature = signature_of(
        "scan", vision.loaded, images, None, settings, reader=reader, packages=("pillow",)
    )
    attributes = {"model": vision.loaded.name, "reads": "images"}
    return measured(job, asked, signature, kinds_of_images(settings), attributes)
