"""What a difference comes to: the changes one by one, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope._documents import called_in
from attnscope._numbers import places
from attnscope._returned import reads


@dataclass(frozen=True)
class Change:
    """One statistic of one head, before and after.

    Attributes
    ----------
    layer, head, partner
        Which head, and which of the second model it is compared with.
    statistic, units
        Name and units.
    before, after, change, low, high
        Means over texts, their difference and its 95% interval.
    size
        The change in standard deviations of all heads of both models together.
    p
        Chance of so large a change without any.
    changed
        Whether it is told from 0 with all heads and statistics looked at together; None where that was not tested, of
        fewer than 6 windows.
    """

    layer: int
    head: int
    partner: int
    statistic: str
    units: str
    before: float
    after: float
    change: float
    low: float
    high: float
    size: float
    p: float
    changed: bool | None


@reads("diff")
def changes_of(difference: xr.Dataset) -> list[Change]:
    """All changes, those that are told from 0 first, the largest of each first.

    Examples
    --------
    >>> from attnscope import diff, scan
    >>> run = scan(limit=2, window=32)
    >>> first = changes_of(diff(run, run))[0]
    >>> first.statistic, first.change, first.changed
    ('outside', 0.0, None)
    """
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
def headline(difference: xr.Dataset) -> list[str]:
    """What the changes come to, in sentences that say how sure they are.

    Examples
    --------
    >>> from attnscope import diff, scan
    >>> run = scan(limit=2, window=32)
    >>> headline(diff(run, run))
    ['Nothing differs: both scans have the same numbers everywhere.']
    """
    rows = changes_of(difference)
    if same_everywhere(rows):
        return ["Nothing differs: both scans have the same numbers everywhere."]
    changed = [row for row in rows if row.changed]
    heads = {(row.layer, row.head) for row in rows}
    moved = {(row.layer, row.head) for row in changed}
    unit = str(difference.attrs["intervals_over"])
    called = called_in(difference.attrs)
    over = f"{difference.attrs['documents' if unit == 'documents' else 'texts']} {called[unit]}"
    if not difference.tested.any():
        return [f"Nothing is told from 0: {over} cannot tell of others. Give 6 or more."]
    rate = f"{float(difference.attrs['level']):.0%}"
    sentences = [
        (
            f"{len(moved)} of {len(heads)} heads changed in some statistic: {len(changed)} of {len(rows)} changes are "
            f"told from 0 (false discovery rate {rate}, over {over})."
        )
    ]
    if unit == called[unit] == "windows":
        sentences.append("The windows are of few documents: this says nothing of other documents.")
    if changed:
        parts = [
            f"{name} {sum(row.statistic == name for row in changed)}"
            for name in dict.fromkeys(map(str, difference.statistic.values))
        ]
        sentences.append(f"Heads changed, by statistic: {'; '.join(parts)}.")
        first = changed[0]
        before, after = (f"{value:.{places(first.change, 2)}f}" for value in (first.before, first.after))
        sentences.append(
            f"Most, for its statistic: {first.statistic} of head {first.layer}.{first.head}, {before} to "
            f"{after} ({first.size:+.{places(first.size, 1)}f} standard deviations of all heads of both models).".replace(
                "-", "−"
            )
        )
    if difference.attrs["matching"] == "number":
        sentences.append("Each head is compared with the one of its number.")
    else:
        other = int((difference.partner.values != difference["head"].values).sum())
        sentences.append(
            "Heads are matched by their offset profiles: those of one number are no more alike than by chance, or it "
            f"was asked for ({other} have another number)."
        )
    return sentences
