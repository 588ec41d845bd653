"""What a difference comes to: the changes one by one, and in sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope.comparison.diff import describe_repeated
from attnscope.measure.documents import LEAST, called_in
from attnscope.support.arguments import reads
from attnscope.support.numbers import places


@dataclass(frozen=True)
class Change:
    """One statistic of one head, before and after."""

    layer: int  # which head, and which of the second model it is compared with
    head: int
    partner: int
    statistic: str  # name and units
    units: str
    before: float  # means over texts, their difference and its 95% interval
    after: float
    change: float
    low: float
    high: float
    size: float  # the change in standard deviations of all heads of both models together
    p: float  # chance of so large a change without any
    # whether it is significant, corrected for all heads and statistics; None where that was not tested, with fewer
    # than 6 documents
    changed: bool | None


@reads("diff")
def changes_of(difference: xr.Dataset) -> list[Change]:
    """All changes, those that are told from 0 first, the largest of each first."""
    rows: list[Change] = []
    for number, name in enumerate(difference.statistic.values):
        for row, layer in enumerate(difference.layer.values):
            for head in range(difference.sizes["head"]):
                at = {"statistic": number, "layer": row, "head": head}
                numbers = {
                    key: float(difference[key].isel(at)) for key in ("before", "after", "change", "size", "p")
                }
                if np.isnan(numbers["before"]):
                    continue
                rows.append(
                    Change(
                        int(layer),
                        head,
                        int(difference.partner.values[row, head]),
                        str(name),
                        str(difference.units.values[number]),
                        low=float(difference.change_low.isel(at)),
                        high=float(difference.change_high.isel(at)),
                        changed=bool(difference.changed.isel(at)) if difference.tested.isel(at) else None,
                        **numbers,
                    )
                )
    return sorted(rows, key=lambda row: (not row.changed, -abs(row.size)))


def same_everywhere(rows: Sequence[Change]) -> bool:
    """Whether nothing changed at all."""
    return all(row.change == 0 for row in rows)


@reads("diff")
def same_heads(difference: xr.Dataset) -> bool:
    """Whether pairs may be called the same heads, before and after: where nothing shows it, they are but pairs."""
    return (
        difference.attrs["matching"] == "number"
        and difference.attrs.get("kinship", "untested") != "not shown"
    )


@reads("diff")
def partner_heading(difference: xr.Dataset) -> str | None:
    """The heading of the second model's heads in a table; None where each head is beside the one of its number."""
    return None if difference.attrs["matching"] == "number" else "beside"


@reads("diff")
def value_headings(difference: xr.Dataset) -> tuple[str, str, str]:
    """The headings of both values and of what lies between them, in a table."""
    return ("before", "after", "change") if same_heads(difference) else ("first", "second", "difference")


@reads("diff")
def headline(difference: xr.Dataset) -> list[str]:
    """What the changes come to, in sentences that say how sure they are."""
    rows = changes_of(difference)
    if same_everywhere(rows):
        return ["Nothing differs: both scans have the same numbers everywhere."]
    changed = [row for row in rows if row.changed]
    heads = {(row.layer, row.head) for row in rows}
    moved = {(row.layer, row.head) for row in changed}
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
            f"{name} {sum(row.statistic == name for row in changed)}"
            for name in dict.fromkeys(map(str, difference.statistic.values))
        ]
        sentences.append(
            f"{'Heads changed' if same else 'Pairs that differ'}, by statistic: {'; '.join(parts)}."
        )
        first = changed[0]
        before, after = (f"{value:.{places(first.change, 2)}f}" for value in (first.before, first.after))
        head = f"head {first.layer}.{first.head}"
        values = f"{head}, {before} to {after}"
        if not same:
            values = f"{head} and head {first.layer}.{first.partner} beside it, {before} and {after}"
        sentences.append(
            f"Most, for its statistic: {first.statistic} of {values} ({first.size:+.{places(first.size, 1)}f} standard "
            "deviations of all heads of both models).".replace("-", "−")
        )
    return [*sentences, _describe_matching(difference)]


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _describe_matching(difference: xr.Dataset) -> str:
    """How heads were matched, whether that was asked for, and whether anything shows pairs to be the same heads."""
    rule, kinship = difference.attrs["matching"], difference.attrs.get("kinship", "untested")
    asked = difference.attrs.get("matching_asked", "auto") == rule
    few = "there are too few heads to tell whether these are the same heads."
    if rule == "number":
        if not np.isfinite(difference.profile_distance.values).any():
            few = "the scans have no offset profiles that would tell whether these are the same heads."
        said = f"Each head is compared with the one of its number{', as was asked for' if asked else ''}"
        return (
            f"{said}: "
            + {
                "shown": "these are more alike than by chance.",
                "not shown": "these are no more alike than by chance, and nothing shows them to be the same heads.",
                "untested": few,
            }[kinship]
        )
    why = "as was asked for" if asked else "as nothing shows those of one number to be the same"
    other = int((difference.partner.values != difference["head"].values).sum())
    said = f"Heads are matched by their offset profiles, {why} ({other} have another number): "
    together = "one to one, so that the pairs of a layer are together most alike."
    return (
        said
        + {
            "shown": f"{together} The pairs are more alike than by chance, as heads of one kind are in unrelated "
            "models too.",
            "not shown": f"{together} The pairs are no more alike than by chance. Nothing shows them to be the same "
            "heads.",
            "untested": few,
        }[kinship]
    )
