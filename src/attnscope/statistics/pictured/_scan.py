"""A scan of texts with images: through a model of vision and language, statistics per text, kinds, signature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.capture import PicturedModel, load_pictured_model
from attnscope.checks import check_seed, check_whole
from attnscope.corpus import grouping_of
from attnscope.corpus.files import decode_utf8, read_bytes
from attnscope.errors import AttnscopeError
from attnscope.statistics._catalogue import OF_GROUPS, choose
from attnscope.statistics._keep import in_folder, joined
from attnscope.statistics._places import NEEDED
from attnscope.statistics._summary import summarize
from attnscope.statistics.pictured._measurement import PicturedMeasurement
from attnscope.store import RunFolder, Signature, package_versions, short_hash, tokenizer_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import xarray as xr
    from transformers import PreTrainedModel

    from attnscope.capture import Bridge, Envoy
    from attnscope.corpus import Groups, PicturedTexts
    from attnscope.progress import Tell


def scan_pictured(
    model: str | Path | PreTrainedModel | Bridge | Envoy,
    texts: PicturedTexts,
    *,
    processor: Any = None,
    out: str | Path | Callable[[Signature], Path] | None = None,
    repair: bool = False,
    limit: int | None = None,
    statistics: Sequence[str] | str | None = None,
    band: int | None = None,
    groups: Groups | None = None,
    chat_template: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    show: Sequence[tuple[int, int]] | None = None,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Measure where every head of a decoder looks that reads texts with images; `attnscope.scan` calls this for them.

    Parameters
    ----------
    model
        A model of vision and language that puts images into its text as tokens (LLaVA, Qwen-VL, Idefics3, ...).
    texts
        From `attnscope.corpus.pictured_of`.
    processor
        Its processor or the processor's folder; by default the one beside the model.
    groups
        A rule for what is no image: images are always groups of their own. By default text and special tokens, and of
        chats the roles.
    chat_template, out, repair, limit, statistics, band, seed, device, dtype, revision, trust_remote_code, show
        See `attnscope.scan`.
    progress
        See `attnscope.scan`.

    Returns
    -------
    xarray.Dataset
        As of text with groups. Beside it, per text and image, ``image_first``, ``image_tokens``, ``image_tiles``,
        ``image_rows`` and ``image_columns``, -1 where not known. The attribute ``pictures`` says how rows and columns
        are known, or why not.

    Raises
    ------
    AttnscopeError
        For anything that the caller can mend: see the message.
    """
    names = (*choose(statistics), *OF_GROUPS)
    band = 10 if band is None else band
    check_whole(1, limit=limit, band=band)
    check_seed(seed)
    template = (
        decode_utf8(read_bytes(chat_template), str(chat_template))
        if isinstance(chat_template, Path)
        else chat_template
    )
    grouping = None if groups is None else grouping_of(groups)
    loaded = load_pictured_model(
        model,
        processor=processor,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    job = PicturedMeasurement(loaded, texts, names, band, limit, grouping, template, progress)
    if band > job.reach:
        raise AttnscopeError(
            f"band (--band) is {band}; in texts of {job.reach + 1} tokens the largest offset is {job.reach}"
        )
    settings = {
        "limit": limit,
        "statistics": list(names),
        "band": band,
        "seed": seed,
        "groups": job.grouping.signature,
        "template": None if template is None else short_hash(template),
    }
    signature = _signature(loaded, texts, settings)
    attributes = {"signature": signature.to_json(), "model": loaded.loaded.name, "reads": "texts with images"}
    kinds = summarize if set(NEEDED) <= set(names) else None
    if out is None:
        results = joined(list(job.batches()))
        if kinds is not None:
            results = results.merge(kinds(results), combine_attrs="no_conflicts")
        return results.assign_attrs(attributes | job.notes)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=repair) as run:
        return in_folder(run, job, kinds, attributes, show)


def _signature(model: PicturedModel, texts: PicturedTexts, settings: dict[str, Any]) -> Signature:
    loaded = model.loaded
    where = {"device": loaded.model.device.type, "dtype": str(loaded.model.dtype).removeprefix("torch.")}
    reader = {"sha256": tokenizer_sha256(loaded.tokenizer), "processor": model.processing()}
    return Signature(
        "scan",
        model={"name": loaded.name, "class": type(loaded.model).__name__, **loaded.identity},
        tokenizer=reader,
        corpus={"sha256": texts.sha256()},
        settings={**settings, **where},
        versions=package_versions(),
    )
