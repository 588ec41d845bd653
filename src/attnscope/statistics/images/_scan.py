"""A scan of images: a folder of them through a vision encoder, statistics per image, kinds, signature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.capture import VisionModel, load_vision_model
from attnscope.checks import check_seed, check_whole
from attnscope.statistics._catalogue import OF_ANY_TOKENS, PATCH_STATISTICS, choose
from attnscope.statistics._keep import in_folder, joined
from attnscope.statistics.images._kinds import NEEDED, summarize_images
from attnscope.statistics.images._measurement import ImageMeasurement
from attnscope.store import RunFolder, Signature, package_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import xarray as xr
    from transformers import PreTrainedModel

    from attnscope.capture import Bridge, Envoy
    from attnscope.corpus import Images
    from attnscope.progress import Tell

KNOWN = (*PATCH_STATISTICS, *OF_ANY_TOKENS)
DEFAULT = tuple(name for name in KNOWN if name != "learned_sink")


def scan_images(
    model: str | Path | PreTrainedModel | Bridge | Envoy,
    images: Images,
    *,
    processor: Any = None,
    out: str | Path | Callable[[Signature], Path] | None = None,
    repair: bool = False,
    limit: int | None = None,
    batch_size: int | None = None,
    statistics: Sequence[str] | str | None = None,
    band: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    show: Sequence[tuple[int, int]] | None = None,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Measure where every attention head of a vision encoder looks; `attnscope.scan` calls this for images.

    Parameters
    ----------
    model
        A vision encoder, or a model of images and text, whose vision tower is measured.
    images
        From `attnscope.corpus.images_of`.
    processor
        Its image processor or the processor's folder; by default the one beside the model.
    statistics
        Names from `attnscope.statistics.PATCH_STATISTICS`, ``entropy``, ``max_weight``, ``gini_simpson`` or
        ``learned_sink`` (not by default).
    band
        Largest offset of the profile in rows and in columns, by default 3.
    out, repair, limit, batch_size, seed, device, dtype, revision, trust_remote_code, show, progress
        See `attnscope.scan`.

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
    >>> found = scan_images(ViTModel(config), images_of(torch.zeros(1, 3, 8, 8)), band=1)
    >>> dict(found.patch_profile.sizes)
    {'text': 1, 'layer': 1, 'head': 2, 'row_offset': 3, 'column_offset': 3}
    """
    names = choose(statistics, KNOWN, DEFAULT)
    check_whole(1, limit=limit, batch_size=batch_size, band=band)
    check_seed(seed)
    vision = load_vision_model(
        model,
        processor=processor,
        need_processor=not images.is_processed,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    job = ImageMeasurement(vision, images, names, band, batch_size, limit, progress)
    settings = {
        "limit": limit,
        "batch_size": job.batch_size,
        "statistics": list(job.names),
        "band": job.band,
        "seed": seed,
    }
    signature = _signature(vision, images, settings)
    attributes = {"signature": signature.to_json(), "model": vision.loaded.name, "reads": "images"}
    kinds = summarize_images if set(NEEDED) <= set(job.names) else None
    if out is None:
        results = joined(list(job.batches()))
        if kinds is not None:
            results = results.merge(kinds(results), combine_attrs="no_conflicts")
        return results.assign_attrs(attributes | job.notes)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=repair) as run:
        return in_folder(run, job, kinds, attributes, show)


def _signature(vision: VisionModel, images: Images, settings: dict[str, Any]) -> Signature:
    """Model, image processor, images, settings, device and type, and the versions of packages."""
    loaded = vision.loaded
    where = {
        "tower": vision.tower or None,
        "device": loaded.model.device.type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
    processing = vision.processing()
    return Signature(
        "scan",
        model={"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        tokenizer=None if processing is None else {"sha256": processing},
        corpus={"sha256": images.sha256()},
        settings={**settings, **where},
        versions=package_versions() | _pillow(),
    )


def _pillow() -> dict[str, str]:
    """The version of Pillow, which decodes and scales images."""
    try:
        import PIL
    except ImportError:
        return {}
    return {"pillow": PIL.__version__}
