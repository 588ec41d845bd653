"""What a difference comes to: the changes one by one, and in sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from attnscope.comparison.diff import describe_repeated
from attnscope.measure.documents import LEAST, called_in
from attnscope.results.schema import Finding, Quantity, Report, Row, Table, rows_of
from attnscope.support.arguments import reads
from attnscope.support.numbers import count, places

_CARE = {
    "A change of weights is not a change of what the model does.": "attnscope intervene measures whether a head "
    "matters.",
    "It is a change on these texts.": "On texts of another kind it may be another.",
}


@reads("diff")
def changes_of(difference: xr.Dataset) -> list[Row]:
    """All changes, those that are significant first, the largest of each first."""
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
    """What a comparison of two models found."""
    rows, same = changes_of(difference), same_heads(difference)
    before, after = str(difference.attrs["before"]), str(difference.attrs["after"])
    tested = bool(difference.tested.any())
    called = called_in(difference.attrs)
    care = dict(_CARE)
    if tested:
        care["A significant change need not be large."] = (
            "Both models read the same windows, so that with many of them the smallest change is significant. The size "
            "reports how much it is."
        )
    if not same:
        care["Nothing shows pairs to be the same heads."] = (
            "The numbers compare two models, not a head before and after."
        )
    names = value_headings(difference)
    repeated = json.loads(difference.attrs.get("repeated", "{}"))
    matching = {name: difference.attrs.get(name, "untested") for name in ("matching", "kinship")}
    least = f"{LEAST} {called['documents']} or more"
    changes = Table(
        "changes",
        f"The {names[2]}s",
        _quantities(difference),
        rows,
        corrected=f"by the false discovery rate for all heads and statistics, {float(difference.attrs['level']):.0%}",
        least=least,
        page=300,
        terminal=0 if same_everywhere(rows) else 20,
    )
    heads, texts = (count(difference.sizes["layer"] * difference.sizes["head"], "head"), int(difference.attrs["texts"]))
    return Report(
        command="diff",
        title=f"What changed from {before} to {after}" if same else f"What differs between {before} and {after}",
        model=f"{before} and {after}",
        read=f"{count(difference.sizes['statistic'], 'statistic')} of {heads} over "
        f"{count(texts, called['windows'].removesuffix('s'))}",
        finding=Finding(
            _sentences(difference, rows),
            f"false discovery rate {float(difference.attrs['level']):.0%}" if tested else "not tested",
            [*dict.fromkeys((row["layer"], row["head"]) for row in rows if row["changed"])],
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
        care=care,
    )


def _quantities(difference: xr.Dataset) -> list[Quantity]:
    before, after, change = value_headings(difference)
    matched = difference.attrs["matching"] != "number"
    return [
        Quantity("layer", unit="count", detail="data"),
        Quantity("head", unit="head"),
        Quantity("partner", "beside", unit="head", detail="table" if matched else "data"),
        Quantity("statistic"),
        Quantity("units", detail="page"),
        Quantity("before", before, "change", "mean over texts", like="change", unsigned=True),
        Quantity("after", after, "change", "mean over texts", like="change", unsigned=True),
        Quantity("change", change, "change", low="low", high="high", significant="changed", interval=True),
        Quantity(
            "size",
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
    """Whether pairs may be called the same heads, before and after: where nothing shows it, they are but pairs."""
    return difference.attrs["matching"] == "number" and difference.attrs.get("kinship", "untested") != "not shown"


@reads("diff")
def value_headings(difference: xr.Dataset) -> tuple[str, str, str]:
    """The headings of both values and of what lies between them, in a table."""
    return ("before", "after", "change") if same_heads(difference) else ("first", "second", "difference")


def _sentences(difference: xr.Dataset, rows: Sequence[Row]) -> list[str]:
    if same_everywhere(rows):
        return ["Nothing differs: both scans have the same numbers everywhere."]
    changed = [row for row in rows if row["changed"]]
    heads = {(row["layer"], row["head"]) for row in rows}
    moved = {(row["layer"], row["head"]) for row in changed}
    called, number = called_in(difference.attrs)["documents"], int(difference.attrs["documents"])
    over = f"{number} {called}"
    repeated = describe_repeated(json.loads(difference.attrs.get("repeated", "{}")))
    if not difference.tested.any():
        few = f"Nothing is tested: that takes {LEAST} {called} or more, and there {_are(number)}."
        return [few, *repeated, _describe_matching(difference)]
    rate = f"{float(difference.attrs['level']):.0%}"
    same = same_heads(difference)
    what = "heads changed" if same else "pairs of heads differ"
    sentences = [
        (
            f"{len(moved)} of {len(heads)} {what} in some statistic: {len(changed)} of {len(rows)} "
            f"{'changes' if same else 'differences'} are significant (false discovery rate {rate}, over {over})."
        )
    ]
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
            values = f"{head} and head {first['layer']}.{first['partner']} beside it, {before} and {after}"
        size = f"{first['size']:+.{places(first['size'], 1)}f}"
        sentences.append(
            f"Most, for its statistic: {first['statistic']} of {values} ({size} standard deviations of all heads of "
            "both models).".replace("-", "−")
        )
    return [*sentences, _describe_matching(difference)]


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _describe_matching(difference: xr.Dataset) -> str:
    """How heads were matched, whether that was asked for, and whether anything shows pairs to be the same heads."""
    rule, kinship = difference.attrs["matching"], difference.attrs.get("kinship", "untested")
    requested = difference.attrs.get("matching_asked", "auto") == rule
    few = "there are too few heads to tell whether these are the same heads."
    if rule == "number":
        if not np.isfinite(difference.profile_distance.values).any():
            few = "the scans have no offset profiles that would tell whether these are the same heads."
        sentence = f"Each head is compared with the one of its number{', as was asked for' if requested else ''}"
        return (
            f"{sentence}: "
            + {
                "shown": "these are more alike than by chance.",
                "not shown": "these are no more alike than by chance, and nothing shows them to be the same heads.",
                "untested": few,
            }[kinship]
        )
    why = "as was asked for" if requested else "as nothing shows those of one number to be the same"
    other = int((difference.partner.values != difference["head"].values).sum())
    sentence = f"Heads are matched by their offset profiles, {why} ({other} have another number): "
    together = "one to one, so that the pairs of a layer are together most alike."
    return (
        sentence
        + {
            "shown": f"{together} The pairs are more alike than by chance, as heads of one kind are in unrelated "
            "models too.",
            "not shown": f"{together} The pairs are no more alike than by chance. Nothing shows them to be the same "
            "heads.",
            "untested": few,
        }[kinship]
    )
