"""`diff`: two scans of one corpus held against each other, head by head."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Bool, Float

from attnscope.comparison.matching import Matched, Matching, match_heads
from attnscope.measure.documents import FEW, LEAST, by_document, called_in, unskewed
from attnscope.measure.quantities import without_end
from attnscope.measure.ranking import with_each
from attnscope.measure.stored import load_scan
from attnscope.store.files import local_folder, read_as
from attnscope.store.folder import manifest_of
from attnscope.store.runs import RunFolder, load_part
from attnscope.store.signature import Signature
from attnscope.support.arguments import validated
from attnscope.support.checks import check_kind, check_real, check_seed, shortly
from attnscope.support.errors import AttnscopeError

LEVEL = 0.05


class Changes(NamedTuple):
    """Mean changes, ``(...)`` each."""

    mean: Float[np.ndarray, ...]  # the mean over texts and its 95% interval by the bootstrap over documents
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    p: Float[np.ndarray, ...]  # chance of so large a mean without any change; NaN where nothing can be said
    changed: Bool[np.ndarray, ...]  # whether it is told from 0, all looked at together; False where there is no `p`


def changes_by_document(
    changes: Float[np.ndarray, "text ..."], documents: Sequence[Hashable], *, level: float = LEVEL, seed: int = 0
) -> Changes:
    r"""Mean change over texts, tested by documents; windows of one document are not independent."""
    interval = by_document(changes, documents, seed=seed)
    p = _chances(changes.reshape(len(changes), -1), documents)
    changed = np.zeros(len(p), dtype=bool)
    known = ~np.isnan(p)
    if known.any():
        changed[known] = scipy.stats.false_discovery_control(p[known]) <= level
    shape = changes.shape[1:]
    return Changes(interval.mean, interval.low, interval.high, p.reshape(shape), changed.reshape(shape))


def _chances(values: np.ndarray, documents: Sequence[Hashable]) -> np.ndarray:
    """Chance of each mean without any change, ``(column,)``; NaN with too few documents."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    if len(numbers) < LEAST:
        return np.full(values.shape[1], np.nan)
    member = np.array([numbers[name] for name in documents])
    sizes = np.bincount(member)
    sums = np.zeros((len(numbers), values.shape[1]))
    np.add.at(sums, member, values)
    means, weight = sums / sizes[:, None], sizes / sizes.sum()
    mean, squares = weight @ means, weight @ weight
    # unbiased if all documents vary alike: a mean's square deviation is 1 - 2 w + sum(w^2) of their variance
    part = weight**2 / (1 - 2 * weight + squares)
    error = np.sqrt(part @ (means - mean) ** 2)
    both, whole = part @ weight, part.sum()
    trace = whole - 2 * both + whole * squares
    norm = (
        part @ part
        + 2 * (part @ (whole * weight**2 - 2 * part * weight))
        + 2 * (part @ part) * squares
        + 2 * both**2
        - 4 * whole * both * squares
        + (whole * squares) ** 2
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(mean / error)
        if (count := len(numbers)) >= FEW:
            third = count**2 / ((count - 1) * (count - 2)) * (weight**3 @ (means - mean) ** 3)
            corrected = unskewed(t, np.sign(mean) * third / error**3)
            t = np.where(error > 0, np.clip(corrected, 0, t), t)
        p = 2 * scipy.stats.t.sf(t, trace**2 / norm)
    return np.where(np.isnan(mean), np.nan, np.where((mean == 0) & (error == 0), 1.0, p))


if TYPE_CHECKING:
    Scan = str | Path | xr.Dataset

_SAME = ("corpus", "target", "tokenizer")  # what both scans must have read
_READERS = {
    "images": "image processor",
    "videos": "processor",
    "sounds": "feature extractor",
    "texts with images": "processor",
}
_SETTINGS = ("window", "stride", "limit", "band")  # which windows, and which offsets


@validated
def diff(
    before: Scan,
    after: Scan,
    *,
    statistics: Sequence[str] | None = None,
    heads: Matching = "auto",
    level: float = LEVEL,
    out: str | Path | Callable[[Signature], Path] | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Hold two scans of the same corpus against each other: checkpoints of one training, a model and its tuned form.

    Both models read the same windows, so every text is compared with itself; so is every image and every sound.

    Parameters
    ----------
    before, after
        Finished runs of ``attnscope scan``: their folders, or what `attnscope.scan` returned.
    statistics
        Names of those to compare, one number a head; by default all that both have. Each chosen offset counts as one
        (``weight_at_-64``), and each share of blocks (``block_recall_5``); what has more numbers (``profile``,
        ``group_weight``) is not compared.
    heads
        How heads are matched within each layer: ``number``, ``profile`` (one to one, so that the pairs of a layer are
        together most alike), or ``auto``. See `match_heads`.
    level
        False discovery rate over all heads and statistics together.
    out
        Run folder, or a function that names it from the signature; without it nothing is written.
    seed
        Seed of the bootstrap.

    Returns
    -------
    xarray.Dataset
        Over ``statistic, layer, head``: ``before`` and ``after`` (means over texts), ``change``, ``change_low``,
        ``change_high`` (95% interval by the bootstrap over documents), ``p`` and ``changed`` (see
        `changes_by_document`), ``tested`` (False with fewer than 6 documents: there are no intervals, and ``changed``
        is False), ``size``, the change in standard deviations of all heads of both models together, so that it is as
        large after against before. Over ``layer, head``:
        ``partner``, the head of the second model that it is compared with, ``profile_distance``, the total variation
        distance of the two offset profiles. ``units`` is a coordinate of each statistic. The attributes ``matching``
        and ``kinship`` say by which rule heads were matched and whether pairs are more alike than by chance: where
        that is not shown, changes are differences of heads that may have nothing to do with each other. A statistic
        whose numbers are those of an earlier one in both scans, as ``special_tokens`` are those of ``first_token``
        where only the first token is special, is counted once: ``repeated`` names it, as JSON.

    Raises
    ------
    AttnscopeError
        If the scans are of different texts, tokenizers, windows or shapes of model, or have no statistic in common.

    Examples
    --------
    >>> import attnscope
    >>> texts = ["The tide is out.", "The boats lie on the mud."] * 4
    >>> first = attnscope.scan(texts=texts)
    >>> bool(diff(first, first).changed.any())
    False
    """
    if isinstance(out, str | Path):
        out = local_folder(out)
    check_seed(seed)
    check_real(0.0, 1.0, level=level)
    if str(heads) not in get_args(Matching):
        raise AttnscopeError(f"heads (--heads) are {shortly(heads)}; expected one of {', '.join(get_args(Matching))}")
    read = " or ".join(str(run) for run in (before, after) if not isinstance(run, xr.Dataset))

    def reading() -> AbstractContextManager[None]:
        return read_as(read) if read else nullcontext()

    with reading():
        first, second = (with_each(_opened(run)) for run in (before, after))
        own, other = (Signature.from_json(run.attrs["signature"]) for run in (first, second))
        _check_same(first, second, own, other)
        names = _common(first, second, statistics)
    signature = Signature(
        "diff",
        model={"name": f"{Path(own.name).name}-{Path(other.name).name}"},
        systems={"before": own.to_dict(), "after": other.to_dict()},
        settings={"statistics": names, "heads": heads, "level": level, "seed": seed},
        versions=own.versions,
    )

    def made() -> xr.Dataset:
        with reading():
            return _compared(first, second, names, heads, level, seed).assign_attrs(
                before=str(first.attrs["model"]), after=str(second.attrs["model"]), signature=signature.to_json()
            )

    if out is None:
        return made()
    with RunFolder(Path(out(signature) if callable(out) else out), signature) as run:
        if not run.complete:
            run.save("changes", made())
            run.finish(parts=["changes"])
        return load_part(run)


def _opened(given: Scan) -> xr.Dataset:
    check_kind("a scan", str, Path, xr.Dataset, scan=given)
    if isinstance(given, xr.Dataset):
        if "signature" not in given.attrs or not {"window", "layer", "head"} <= set(given.dims):
            raise AttnscopeError(
                f"found a Dataset over {', '.join(map(str, given.dims)) or 'nothing'} that is not a scan; expected "
                "what attnscope.scan returns"
            )
        return given
    folder = local_folder(given)
    manifest = manifest_of(folder)
    if manifest is None or manifest.command != "scan" or not manifest.state.get("complete"):
        what = "no run of attnscope" if manifest is None else f"an attnscope {manifest.command}, finished or not"
        raise AttnscopeError(f"{folder} holds {what}; expected a finished run of attnscope scan")
    with RunFolder(folder, manifest.state.get("signature", {})) as run:
        return load_scan(run)


def _check_same(first: xr.Dataset, second: xr.Dataset, own: Signature, other: Signature) -> None:
    reads = str(first.attrs.get("reads", "texts"))
    reader, called = _READERS.get(reads, "tokenizer"), called_in(first.attrs)["windows"]
    for part in _SAME:
        if getattr(own, part) != getattr(other, part):
            what = {"corpus": reads, "target": "targets", "tokenizer": reader}[part]
            raise AttnscopeError(
                f"the two scans have different {what}: heads are compared on the same {called} of the same {reads}; "
                f"scan both models on one corpus, with one {reader}"
            )
    for name in _SETTINGS:
        values = [(settings.settings or {}).get(name) for settings in (own, other)]
        if values[0] != values[1]:
            raise AttnscopeError(f"the two scans differ in --{name}: {values[0]} and {values[1]}; scan both alike")
    if any(first.sizes[dim] != second.sizes[dim] for dim in ("layer", "head", "window")):
        shapes = [
            f"{run.sizes['layer']} x {run.sizes['head']} heads, {run.sizes['window']} {called}"
            for run in (first, second)
        ]
        raise AttnscopeError(f"the models have {shapes[0]} and {shapes[1]}: only models of one shape are compared")
    _check_cut(first, second, reads)


def _check_cut(first: xr.Dataset, second: xr.Dataset, reads: str) -> None:
    """Refuse models that make other tokens of the same images or sounds."""
    for name in ("length", "rows", "columns"):
        if (name in first) != (name in second) or (
            name in first and not np.array_equal(first[name].values, second[name].values)
        ):
            shown = [int(side[name].values[0]) if name in side else "none" for side in (first, second)]
            raise AttnscopeError(
                f"the models cut the same {reads} into different tokens ({name}: {shown[0]} and {shown[1]} of the "
                "first that is read): offsets are not the same in both; compare models that cut alike"
            )


def _profiles(scan: xr.Dataset) -> np.ndarray | None:
    """Mean profiles over texts, ``(layer, head, offset)``; of images all offsets in rows and columns."""
    if "patch_profile" in scan:
        ordered = scan.patch_profile.transpose("window", "layer", "head", "row_offset", "column_offset")
        return ordered.mean("window").values.reshape(*ordered.shape[1:3], -1)
    return scan.profile.mean("window").values if "profile" in scan else None


def _common(first: xr.Dataset, second: xr.Dataset, asked: Sequence[str] | None) -> list[str]:
    cells = ("window", "layer", "head")
    both = [
        str(name)
        for name in first.data_vars
        if first[name].dims == cells and name in second and name != "label" and without_end(str(name)) == name
    ]
    if asked is not None and not asked:
        raise AttnscopeError(f"no statistic was named; choose from {', '.join(both)}")
    unknown = [name for name in asked or () if name not in both]
    if unknown or not both:
        raise AttnscopeError(
            f"both scans have no statistic {unknown[0]!r} of one number a head; choose from {', '.join(both)}"
            if unknown
            else "the scans have no statistic in common; scan both with the same --statistics"
        )
    return both if asked is None else [name for name in both if name in asked]


def _compared(
    first: xr.Dataset, second: xr.Dataset, names: list[str], heads: Matching, level: float, seed: int
) -> xr.Dataset:
    grid = ("layer", "head")
    shape = (first.sizes["layer"], first.sizes["head"])
    matched = Matched(np.broadcast_to(np.arange(shape[1]), shape).copy(), "number", "untested")
    distance = np.full(shape, np.nan)
    profiles = [_profiles(run) for run in (first, second)]
    if profiles[0] is not None and profiles[1] is not None:
        matched = match_heads(profiles[0], profiles[1], matching=heads, seed=seed)
        moved = np.take_along_axis(profiles[1], matched.partner[..., None], 1)
        apart = np.abs(moved - profiles[0])  # NaN at offsets that no window has
        distance = np.where(np.isnan(apart).all(-1), np.nan, np.nansum(apart, -1) / 2)
    elif heads == "profile":
        raise AttnscopeError(
            "heads cannot be matched by profile: the scans have none; scan with --statistics profile (of images "
            "patch_profile)"
        )
    given = {name: [run[name].transpose("window", *grid).values for run in (first, second)] for name in names}
    repeated = repeated_statistics(names, list(given.values()))
    names = [name for name in names if name not in repeated]
    values = [np.stack([given[name][side] for name in names], 1) for side in (0, 1)]
    values[1] = np.take_along_axis(values[1], np.broadcast_to(matched.partner, values[1].shape), -1)
    documents = first.source.values.tolist()
    changes = changes_by_document(values[1] - values[0], documents, level=level, seed=seed)
    before = values[0].mean(0)
    after = values[1].mean(0)
    cells = ("statistic", *grid)
    return xr.Dataset(
        {
            "before": (cells, before, {"long_name": "Mean over texts, first model"}),
            "after": (cells, after, {"long_name": "Mean over texts, second model"}),
            "change": (cells, changes.mean, {"long_name": "Change"}),
            "change_low": (cells, changes.low, {"long_name": "Lower end of its 95% interval"}),
            "change_high": (cells, changes.high, {"long_name": "Upper end of its 95% interval"}),
            "p": (cells, changes.p, {"long_name": "Chance of so large a change", "units": "1"}),
            "changed": (cells, changes.changed, {"long_name": "Told from 0 at the false discovery rate", "units": "1"}),
            "tested": (cells, np.isfinite(changes.p), {"long_name": "Whether that was tested", "units": "1"}),
            "size": (
                cells,
                sizes(changes.mean, before, after),
                {"long_name": "Change in standard deviations of all heads of both models", "units": "1"},
            ),
            "partner": (grid, matched.partner, {"long_name": "Head of the second model", "units": "1"}),
            "profile_distance": (
                grid,
                distance,
                {"long_name": "Total variation distance of the offset profiles", "units": "share"},
            ),
        },
        coords={
            "statistic": names,
            "units": ("statistic", [str(first[name].attrs.get("units", "1")) for name in names]),
            "long_name": ("statistic", [str(first[name].attrs.get("long_name", name)) for name in names]),
            **{name: first.coords[name] for name in ("layer", "layer_name", "layer_kind", "head")},
        },
        attrs={
            "texts": first.sizes["window"],
            "documents": len(set(documents)),
            "reads": "pools" if "window_count" in first else str(first.attrs.get("reads", "texts")),
            "intervals_over": "documents",
            "matching": matched.rule,
            "matching_asked": heads,
            "kinship": matched.kinship,
            "repeated": json.dumps(repeated),
            "level": level,
        },
    )


def repeated_statistics(names: Sequence[str], values: Sequence[Sequence[np.ndarray]]) -> dict[str, str]:
    """Names of the statistics whose numbers an earlier one has everywhere, each with the earlier one's name."""
    repeated: dict[str, str] = {}
    for number, name in enumerate(names):
        for earlier, known in zip(names[:number], values, strict=False):
            if earlier not in repeated and _same(values[number], known):
                repeated[name] = earlier
                break
    return repeated


def _same(values: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> bool:
    """Whether there are numbers, and the same ones everywhere."""
    return any(np.isfinite(own).any() for own in values) and all(
        np.allclose(own, other, rtol=ROUNDING, atol=ROUNDING**2, equal_nan=True)
        for own, other in zip(values, known, strict=True)
    )


def describe_repeated(repeated: dict[str, str]) -> list[str]:
    """Which statistics count once, in a sentence for each; none where all differ."""
    return [
        f"{name} has the same numbers as {other} here, and is counted once, as {other}."
        for name, other in repeated.items()
    ]


ROUNDING = 1e-6  # relative: numbers that differ by less are the same, but for the order of sums


def sizes(
    change: Float[np.ndarray, "*cell layer head"],
    before: Float[np.ndarray, "*cell layer head"],
    after: Float[np.ndarray, "*cell layer head"],
) -> Float[np.ndarray, "*cell layer head"]:
    r"""Changes in standard deviations of all heads of both sides together."""
    both = np.concatenate([before.reshape(*before.shape[:-2], -1), after.reshape(*after.shape[:-2], -1)], -1)
    known = np.isfinite(both)
    count = np.maximum(known.sum(-1, keepdims=True), 1)
    values = np.where(known, both, 0.0)
    apart = np.where(known, values - values.sum(-1, keepdims=True) / count, 0.0)
    spread = np.sqrt((apart**2).sum(-1, keepdims=True) / count)
    told = spread > ROUNDING * np.abs(values).max(-1, keepdims=True)
    return change / np.where(told, spread, np.inf)[..., None]
