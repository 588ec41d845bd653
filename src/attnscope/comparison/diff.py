"""`diff`: compare two scans of one corpus head by head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.comparison.matching import Matched, Matching, match_heads
from attnscope.measure.quantities import STATISTICS, without_end
from attnscope.report.reads import reads
from attnscope.report.schema import HEAD, MATTERS, Finding, Quantity, Report, Row, Table, heads_by, rows_of
from attnscope.report.signature import Signature
from attnscope.statistics.effects import CHANGES, INTERVALS, MODELS, changes_by_document, changes_by_model
from attnscope.statistics.units import LEAST, called_in, numbered
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import are, count, places

LEVEL = 0.05


Scan = str | Path | xr.Dataset

_SAME = ("corpus", "target", "tokenizer")  # what both scans must have read
_READERS = {
    "images": "image processor",
    "videos": "processor",
    "sounds": "feature extractor",
    "texts with images": "processor",
}
_SETTINGS = ("window", "stride", "limit", "band")  # which windows, and which offsets


def check_same_texts(first: xr.Dataset, second: xr.Dataset, own: Signature, other: Signature) -> None:
    reads = str(first.attrs.get("reads", "texts"))
    reader, called = _READERS.get(reads, "tokenizer"), called_in(first.attrs)["windows"]
    for part in _SAME:
        if getattr(own, part) != getattr(other, part):
            what = {"corpus": reads, "target": "targets", "tokenizer": reader}[part]
            raise AttnscopeError(
                f"the two scans have different {what}; expected the same {called} of the same {reads}. Scan both "
                f"models on one corpus, with one {reader}"
            )
    for name in _SETTINGS:
        values = [(settings.settings or {}).get(name) for settings in (own, other)]
        if values[0] != values[1]:
            raise AttnscopeError(
                f"the two scans differ in --{name}: {values[0]} and {values[1]}. Use the same for both"
            )
    if any(first.sizes[dim] != second.sizes[dim] for dim in ("layer", "head", "window")):
        shapes = [
            f"{run.sizes['layer']} x {run.sizes['head']} heads, {run.sizes['window']} {called}"
            for run in (first, second)
        ]
        raise AttnscopeError(f"the scans have {shapes[0]} and {shapes[1]}; expected the same shape")
    for name in ("length", "rows", "columns"):
        if (name in first) != (name in second) or (
            name in first and not np.array_equal(first[name].values, second[name].values)
        ):
            lengths = [int(side[name].values[0]) if name in side else "none" for side in (first, second)]
            raise AttnscopeError(
                f"the models cut the same {reads} into different tokens ({name} of the first one: {lengths[0]} and "
                f"{lengths[1]}), so offsets do not match. Compare models with the same cut"
            )


def _profiles(scan: xr.Dataset) -> np.ndarray | None:
    """Mean profiles over texts, ``(layer, head, offset)``; for images all offsets in rows and columns."""
    if "patch_profile" in scan:
        ordered = scan.patch_profile.transpose("window", "layer", "head", "row_offset", "column_offset")
        return ordered.mean("window").values.reshape(*ordered.shape[1:3], -1)
    return scan.profile.mean("window").values if "profile" in scan else None


def common_statistics(first: xr.Dataset, second: xr.Dataset, requested: Sequence[str] | None) -> list[str]:
    cells = ("window", "layer", "head")
    both = [
        str(name)
        for name in first.data_vars
        if first[name].dims == cells and name in second and name != "label" and without_end(str(name)) == name
    ]
    if requested is not None and not requested:
        raise AttnscopeError(f"found no statistics; choose from {', '.join(both)}")
    unknown = [name for name in requested or () if name not in both]
    if unknown or not both:
        raise AttnscopeError(
            f"the scans have no common statistic {unknown[0]!r} with one number for each head; choose from "
            f"{', '.join(both)}"
            if unknown
            else "the scans have no statistic in common. Scan both with the same --statistics"
        )
    return both if requested is None else [name for name in both if name in requested]


def name_of_group(scans: Sequence[xr.Dataset]) -> str:
    """The name of a model, or of a group of models by their number."""
    names = [Path(str(scan.attrs["model"])).name for scan in scans]
    return (
        str(scans[0].attrs["model"]) if len(scans) == 1 else f"{len(scans)} models ({', '.join(dict.fromkeys(names))})"
    )


def compared_scans(
    first: Sequence[xr.Dataset],
    second: Sequence[xr.Dataset],
    names: list[str],
    heads: Matching,
    level: float,
    seed: int,
) -> xr.Dataset:
    """Changes between two models, or between two groups of models; heads are matched with those of the first one."""
    grid = ("layer", "head")
    every = [*first, *second]
    pairs = [_matched(every[0], other, heads, seed) for other in every[1:]]
    matched, distance = pairs[len(first) - 1]
    of_scans = {name: [run[name].transpose("window", *grid).values for run in every] for name in names}
    repeated = repeated_statistics(names, list(of_scans.values()))
    names = [name for name in names if name not in repeated]
    values = [np.stack([of_scans[name][at] for name in names], 1) for at in range(len(every))]
    for at, (pair, _) in enumerate(pairs, 1):
        values[at] = np.take_along_axis(values[at], np.broadcast_to(pair.partner, values[at].shape), -1)
    documents = every[0].source.values.tolist()
    means = np.stack([one.mean(0) for one in values])
    before, after = means[: len(first)].mean(0), means[len(first) :].mean(0)
    groups: dict[str, Any] = {}
    if len(every) == 2:  # noqa: PLR2004
        changes = changes_by_document(values[1] - values[0], documents, level=level, seed=seed)
    else:
        changes, chance, least = changes_by_model(means[: len(first)], means[len(first) :], level=level, seed=seed)
        groups = {"models": [len(first), len(second)], "p_of_groupings": chance, "least_p": least}
    rules = [pair.rule for pair, _ in pairs]
    similarities = [pair.similarity for pair, _ in pairs]
    cells = ("statistic", *grid)
    return xr.Dataset(
        {
            name: (grid if values.ndim == 2 else cells, values, dict(zip(("long_name", "units"), words, strict=False)))  # noqa: PLR2004
            for name, values, *words in (
                ("before", before, "Mean over texts, first model"),
                ("after", after, "Mean over texts, second model"),
                ("change", changes.mean, "Change"),
                ("change_low", changes.low, "Lower end of its 95% interval"),
                ("change_high", changes.high, "Upper end of its 95% interval"),
                ("p", changes.p, "p-value of the change", "1"),
                ("changed", changes.changed, "Significant by the false discovery rate", "1"),
                ("tested", np.isfinite(changes.p), "Whether the change was tested", "1"),
                (
                    "size",
                    sizes(changes.mean, before, after),
                    "Change in standard deviations of all heads of both models",
                    "1",
                ),
                ("partner", matched.partner, "Head of the second model", "1"),
                ("profile_distance", distance, "Total variation distance of the offset profiles", "share"),
            )
        },
        coords={
            "statistic": names,
            "units": ("statistic", [str(every[0][name].attrs.get("units", "1")) for name in names]),
            "long_name": ("statistic", [str(every[0][name].attrs.get("long_name", name)) for name in names]),
            **{name: every[0].coords[name] for name in ("layer", "layer_name", "layer_kind", "head")},
        },
        attrs={
            "texts": every[0].sizes["window"],
            "documents": numbered(documents)[1],
            "reads": "pools" if "window_count" in every[0] else str(every[0].attrs.get("reads", "texts")),
            "intervals_over": "models" if groups else "documents",
            "matching": "profile" if "profile" in rules else "number",
            "matching_requested": heads,
            "similarity": next(one for one in ("not shown", "untested", "shown") if one in similarities),
            **groups,
            "repeated": json.dumps(repeated),
            "level": level,
        },
    )


def _matched(first: xr.Dataset, other: xr.Dataset, heads: Matching, seed: int) -> tuple[Matched, np.ndarray]:
    """The heads of another model for those of the first, and the distance of their profiles."""
    shape = (first.sizes["layer"], first.sizes["head"])
    profiles = [_profiles(run) for run in (first, other)]
    if profiles[0] is None or profiles[1] is None:
        if heads == "profile":
            raise AttnscopeError(
                "heads cannot be matched by profile, because the scans have none. Scan with --statistics profile (for "
                "images, patch_profile)"
            )
        own = np.broadcast_to(np.arange(shape[1]), shape).copy()
        return Matched(own, "number", "untested"), np.full(shape, np.nan)
    matched = match_heads(profiles[0], profiles[1], matching=heads, seed=seed)
    moved = np.take_along_axis(profiles[1], matched.partner[..., None], 1)
    apart = np.abs(moved - profiles[0])  # NaN at offsets that no window has
    return matched, np.where(np.isnan(apart).all(-1), np.nan, np.nansum(apart, -1) / 2)


def repeated_statistics(names: Sequence[str], values: Sequence[Sequence[np.ndarray]]) -> dict[str, str]:
    """Statistics with the same numbers as an earlier one, each with the name of that one."""
    repeated: dict[str, str] = {}
    for number, name in enumerate(names):
        for earlier, earlier_values in zip(names[:number], values, strict=False):
            if earlier not in repeated and _same(values[number], earlier_values):
                repeated[name] = earlier
                break
    return repeated


def _same(values: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> bool:
    """Whether there are numbers, and they are equal everywhere."""
    return any(np.isfinite(first).any() for first in values) and all(
        np.allclose(first, other, rtol=ROUNDING, atol=ROUNDING**2, equal_nan=True)
        for first, other in zip(values, known, strict=True)
    )


def describe_repeated(repeated: dict[str, str]) -> list[str]:
    """A sentence for each statistic that is counted once."""
    same = "{0} has the same numbers as {1} here and is counted once, as {1}."
    return [same.format(*names) for names in repeated.items()]


ROUNDING = 1e-6  # relative difference below which numbers count as equal


def sizes(
    change: Float[np.ndarray, "*cell layer head"],
    before: Float[np.ndarray, "*cell layer head"],
    after: Float[np.ndarray, "*cell layer head"],
) -> Float[np.ndarray, "*cell layer head"]:
    r"""Changes in standard deviations between heads of both sides together."""
    both = np.concatenate([before.reshape(*before.shape[:-2], -1), after.reshape(*after.shape[:-2], -1)], -1)
    finite = np.ma.masked_invalid(both)
    parts = finite.std(-1, keepdims=True), np.abs(finite).max(-1, keepdims=True)
    spread, largest = (part.filled(0.0)[..., None] for part in parts)
    return change / np.where(spread > ROUNDING * largest, spread, np.inf)


_CARE = {
    "A change of weights need not change the predictions.": MATTERS,
    "Changes depend on the texts.": "Other kinds of text may show others.",
}


@reads("diff")
def changes_of(difference: xr.Dataset) -> list[Row]:
    """All changes: the significant ones first, and the largest first within each part."""
    columns: dict[str, xr.DataArray | None] = {
        **{name: difference[name] for name in ("before", "after", "change", "size", "p", "partner", "units")},
        "low": difference.change_low,
        "high": difference.change_high,
        "changed": difference.changed.astype(object).where(difference.tested),
    }
    rows = rows_of(columns, difference.before.transpose("statistic", "layer", "head"))
    return sorted(rows, key=lambda row: (not row["changed"], -abs(row["size"])))


@reads("diff")
def report(difference: xr.Dataset) -> Report:
    """Report of a comparison of two models."""
    rows, same = changes_of(difference), same_heads(difference)
    before, after = str(difference.attrs["before"]), str(difference.attrs["after"])
    tested = bool(difference.tested.any())
    called = called_in(difference.attrs)
    care, moved = dict(_CARE), "significant change" if same else "significant difference"
    if tested:
        care["A significant change need not be large."] = "With many windows the smallest change is significant."
    if "models" in difference.attrs:
        care = dict(_CARE) | {"Few models say little about others.": "Values of models are taken to be normal."}
    if not same:
        care["Pairs may be different heads."] = "The numbers compare two models, not a head before and after."
    names = value_headings(difference)
    repeated = json.loads(difference.attrs.get("repeated", "{}"))
    matching = {name: difference.attrs.get(name, "untested") for name in ("matching", "similarity")}
    changes = Table(
        "changes",
        f"The {names[2]}s",
        _quantities(difference),
        rows,
        corrected="by the false discovery rate for all heads and statistics",
        level=float(difference.attrs["level"]),
        least="2 or more models in each group"
        if "models" in difference.attrs
        else f"{LEAST} {called['documents']} or more",
        page=300,
        terminal=0 if same_everywhere(rows) else min(20, max(8, int(difference.changed.sum()))),
    )
    heads, texts = (count(difference.sizes["layer"] * difference.sizes["head"], "head"), int(difference.attrs["texts"]))
    return Report(
        title=f"What changed from {before} to {after}" if same else f"What differs between {before} and {after}",
        model=f"{before} → {after}",
        read=f"{count(difference.sizes['statistic'], 'statistic')} of {heads} over "
        f"{count(texts, called['windows'].removesuffix('s'))}",
        finding=Finding(
            _sentences(difference, rows),
            f"false discovery rate {float(difference.attrs['level']):.0%}" if tested else "not tested",
            heads_by(rows, lambda row: moved * bool(row["changed"]), moved) if tested else {},
            headline=_headline(difference, rows),
        ),
        tables=[
            replace(changes, page=0) if same_everywhere(rows) else changes,
            Table("matching", "", [Quantity(name) for name in matching], [matching], terminal=0, page=0),
            Table(
                "repeated",
                "",
                [Quantity("corpus"), Quantity("documents", unit="count")],
                [{"corpus": name, "documents": number} for name, number in repeated.items()],
                terminal=0,
                page=0,
            ),
        ],
        result=difference,
        method=MODELS if "models" in difference.attrs else f"{INTERVALS} {CHANGES}",
        care=care,
    )


def _quantities(difference: xr.Dataset) -> list[Quantity]:
    before, after, change = value_headings(difference)
    matched = difference.attrs["matching"] != "number"
    return [
        *HEAD,
        Quantity("partner", "matched with", unit="head", detail="table" if matched else "data"),
        Quantity("statistic", unit="name"),
        Quantity("units", "unit"),
        Quantity("before", before, "change", str(difference.attrs.get("before", "")), like="change", unsigned=True),
        Quantity("after", after, "change", str(difference.attrs.get("after", "")), like="change", unsigned=True),
        Quantity("change", change, "change", low="low", high="high", significant="changed", interval=True),
        Quantity(
            "size",
            "size (SD)",
            unit="deviations",
            meaning=f"the {change} in standard deviations of all heads of both models together",
        ),
        Quantity("p", unit="share", detail="data"),
    ]


def same_everywhere(rows: Sequence[Row]) -> bool:
    """Whether nothing changed at all."""
    return all(row["change"] == 0 for row in rows)


@reads("diff")
def same_heads(difference: xr.Dataset) -> bool:
    """Whether pairs count as the same heads, before and after."""
    return difference.attrs["matching"] == "number" and difference.attrs.get("similarity", "untested") != "not shown"


@reads("diff")
def value_headings(difference: xr.Dataset) -> tuple[str, str, str]:
    """The headings of both values and of their difference in a table."""
    return ("before", "after", "change") if same_heads(difference) else ("first", "second", "difference")


def _headline(difference: xr.Dataset, rows: Sequence[Row]) -> str:
    if same_everywhere(rows):
        return "Nothing differs: both scans have the same numbers"
    heads = {(row["layer"], row["head"]) for row in rows}
    moved = len({(row["layer"], row["head"]) for row in rows if row["changed"]})
    first, name = f"{rows[0]['layer']}.{rows[0]['head']}", rows[0]["statistic"]
    what = STATISTICS[name].words.long_name if name in STATISTICS else name
    values = " → ".join(f"{rows[0][end]:.{places(rows[0]['change'], 2)}f}" for end in ("before", "after"))
    values, size = (text.replace("-", "−") for text in (values, f"{rows[0]['size']:+.2g}"))
    if not difference.tested.any():
        called = called_in(difference.attrs)["documents"]
        return f"Largest change, not tested: head {first} ({what}: {values}); tests need {LEAST} or more {called}"
    if not moved:
        largest = f"{abs(rows[0]['size']):.2g}"
        return f"No significant change: none is larger than {largest} standard deviations between heads"
    if same_heads(difference):
        return (
            f"{moved} of {len(heads)} heads changed significantly; the largest significant change is that of head "
            f"{first} ({what}: {values}, {size} standard deviations between heads)"
        )
    size = f"{abs(rows[0]['size']):.2g}"
    return (
        f"{moved} of {len(heads)} pairs of heads differ significantly, the pair of head {first} the most, by {size} "
        "standard deviations between heads"
    )


def _sentences(difference: xr.Dataset, rows: Sequence[Row]) -> list[str]:
    if same_everywhere(rows):
        return ["Nothing differs: both scans have the same numbers."]
    changed = [row for row in rows if row["changed"]]
    heads = {(row["layer"], row["head"]) for row in rows}
    moved = {(row["layer"], row["head"]) for row in changed}
    called, number = called_in(difference.attrs)["documents"], int(difference.attrs["documents"])
    models = difference.attrs.get("models")
    over = f"{number} {called}" if models is None else f"{models[0]} and {models[1]} models"
    repeated = describe_repeated(json.loads(difference.attrs.get("repeated", "{}")))
    if not difference.tested.any():
        few = f"Nothing is tested: tests need {LEAST} or more {called}, and there {are(number)}."
        return [few, *repeated, _describe_matching(difference)]
    rate = f"{float(difference.attrs['level']):.0%}"
    same = same_heads(difference)
    tests, moves = f"false discovery rate {rate}, over {over}", len(moved)
    if not changed:
        first = f"0 of {len(rows)} {'changes' if same else 'differences'} are significant ({tests})."
    elif same:
        first = f"{moves} of {len(heads)} heads changed significantly: {len(changed)} of {len(rows)} changes ({tests})."
    else:
        first = f"{moves} of {len(heads)} pairs of heads differ significantly: {len(changed)} of {len(rows)} ({tests})."
    sentences = [first]
    if models is not None:
        chance, least = difference.attrs["p_of_groupings"], difference.attrs["least_p"]
        sentences.append(
            f"By all groupings of the models, the largest change has p = {chance:.2g}; this exact test cannot give "
            f"less than {least:.2g} with so few models."
            if least > LEVEL
            else f"By all groupings of the models, the largest change has p = {chance:.2g}."
        )
    sentences += repeated
    if changed:
        parts = [
            f"{name} {sum(row['statistic'] == name for row in changed)}"
            for name in dict.fromkeys(map(str, difference.statistic.values))
        ]
        sentences.append(f"{'Heads changed' if same else 'Pairs that differ'}, by statistic: {'; '.join(parts)}.")
        first = changed[0]
        before, after = (f"{value:.{places(first['change'], 2)}f}" for value in (first["before"], first["after"]))
        head = f"head {first['layer']}.{first['head']}"
        values = f"{head}, {before} to {after}"
        if not same:
            values = f"{head} and its match {first['layer']}.{first['partner']}, {before} and {after}"
        size = f"{first['size']:+.{places(first['size'], 1)}f}"
        sentences.append(
            f"Largest, for its statistic: {first['statistic']} of {values} ({size} standard deviations of all heads "
            "of both models).".replace("-", "−")
        )
    return [*sentences, _describe_matching(difference)]


def _describe_matching(difference: xr.Dataset) -> str:
    """How heads were matched, and whether pairs are more similar than chance."""
    rule, similarity = difference.attrs["matching"], difference.attrs.get("similarity", "untested")
    requested = difference.attrs.get("matching_requested", "auto") == rule
    few = "There are too few heads to test whether pairs are the same heads."
    if rule == "number":
        if not np.isfinite(difference.profile_distance.values).any():
            few = "Without offset profiles there is no test whether pairs are the same heads."
        sentence = f"Heads are matched by number{', as requested' if requested else ''}."
        alike = "These pairs are more similar than chance."
    else:
        why = "as requested" if requested else "because heads of one number are not significantly similar"
        other = int((difference.partner.values != difference["head"].values).sum())
        sentence = f"Heads are matched one to one by their offset profiles, {why} ({other} have another number)."
        alike = "These pairs are more similar than chance; heads of one kind are in unrelated models too."
    apart = "These pairs are not more similar than chance, so they may be different heads."
    return f"{sentence} {({'shown': alike, 'not shown': apart, 'untested': few})[similarity]}"
