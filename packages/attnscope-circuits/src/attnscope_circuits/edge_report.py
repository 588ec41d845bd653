"""The report of `edges`: the edges that carry the answer, and circuits of the best ones."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from attnscope.head_names import shown_component
from attnscope.intervention.metrics import format_of, note_of, subject_of, unit_of
from attnscope.intervention.pairs import texts_of
from attnscope.intervention.patch import has_one_sign
from attnscope.intervention.patch_findings import NO_SHARE, care_of_answers, describe_runs, first_pair
from attnscope.report.reads import reads
from attnscope.report.schema import Finding, Quantity, Report, Table, rows_of, with_ends
from attnscope.statistics.effects import EFFECTS, INTERVALS, by_document
from attnscope.statistics.units import LEAST, numbered
from attnscope.support.numbers import are, count, significant
from attnscope_circuits.edge_scores import base_of

if TYPE_CHECKING:
    import xarray as xr

_EDGES = (
    Quantity("sender", detail="data"),
    Quantity("receiver", detail="data"),
    Quantity("from", "from part", meaning="part whose output is read: a head, an MLP, or the input"),
    Quantity("sender_stack", "stack", meaning="encoder, decoder, or the decoder's cross-attention, of either part"),
    Quantity("to", "to part", meaning="later part that reads it: a head, an MLP, or the logits"),
    Quantity("receiver_stack", "stack"),
    Quantity("through", meaning="what a head reads it through: query, key or value"),
)
_SIDES = {"<q>": "query", "<k>": "key", "<v>": "value"}
_PART = re.compile(r"a(\d+)\.h(\d+)(<[qkv]>)?")
ORDERS = {
    "raising": ("raising edges", "share of the difference kept with the edges that raise the metric most"),
    "changing": ("largest edges", "the same with the edges that change it most"),
    "random": ("random edges", "the same with as many random edges"),
}
_KEPT = [with_ends(name, one[0], "percent", one[1], interval=name == "raising") for name, one in ORDERS.items()]
_CIRCUITS = (Quantity("size", "share of edges", "percent"), Quantity("edges", unit="count"), *_KEPT)
_RANKED = {"raising": "those that work most for the answer", "changing": "those with the largest scores"}
_SIGN = (
    "A negative change: the edge works for the answer, which loses with the corrupted activation. Positive: against it."
)
_FAR = 0.2  # from the whole difference, at most, as a circuit keeps it


@reads("edges")
def report(found: xr.Dataset) -> Report:
    """Scores of edges, and how much of the difference circuits keep."""
    pairs, model, unit = found.attrs["pairs"], found.attrs["model"], found.attrs.get("unit", "logits")
    distinct = numbered(texts_of(found))[1]
    values: dict[str, xr.DataArray | None] = {name: found[name] for name in ("score", "score_low", "score_high")}
    values |= {"shown": found.shown.astype(object).where(found.tested)}
    values |= {name: found.get(name) for name in ("sender_stack", "receiver_stack")}
    rows = sorted(rows_of(values, found.score), key=lambda row: -abs(row["score"]))
    for row in rows:
        row["from"], _ = named(row["sender"])
        row["to"], row["through"] = named(row["receiver"])
    # a share needs a difference whose sign is certain
    gaps = (found.clean - base_of(found)).values
    certain = found.faithfulness_low.notnull() | (distinct < LEAST and has_one_sign(gaps))
    curves = {end: found[f"faithfulness{end}"].where(certain) for end in ("", "_low", "_high")}
    ends = {name + end: curve.sel(order=name) for name in ORDERS for end, curve in curves.items()}
    circuits = rows_of(ends | {"edges": (found["size"] * len(rows)).round()}, found["size"])
    first, *kept = _circuit(found, len(rows))
    shown = [row for row in rows if row["shown"]]
    largest = (shown or rows)[0]
    names = [
        f"{row['from']} → {row['to']} {row['through'] or ''}".rstrip()
        + f" ({significant(row['score'], 2)}{unit_of(found.attrs)})"
        for row in (largest, rows[0])
    ]
    most, most_of_all = names
    have = "has" if len(shown) == 1 else "have"
    second = f"{len(shown)} of {len(rows)} edges {have} a significant score, the largest of these {most}."
    beyond = [f"The largest score of all, {most_of_all}, is not significant."] if shown and largest != rows[0] else []
    if not shown:
        second = f"None of {len(rows)} edges has a significant score; the largest score is that of {most}."
    if largest["shown"] is None:
        second = f"There are no intervals: they need {LEAST} or more pairs of one kind, and there {are(distinct)}."
    cpr, by_chance = (f"{float(found.cpr.sel(order=name)):.2f}" for name in ("raising", "random"))
    cmd, far = (f"{float(found.cmd.sel(order=name)):.2f}" for name in ("changing", "random"))
    third = (
        f"Averaged over sizes, circuits of the best edges keep {cpr} of the difference (CPR), random ones {by_chance}. "
        f"Circuits of the largest edges are {cmd} away from all of it (CMD), random ones {far}."
    )
    tested = "edges, order and size of circuits are chosen on one half of the pairs and tested on the other"
    if distinct < LEAST:
        tested = f"circuits are chosen and tested on the same pairs, with fewer than {LEAST} of them"
    care = {"Other pairs may need other edges.": "Pairs from one template say little about other sentences."}
    if found.attrs["method"] != "exact":
        care["Scores are estimates from gradients."] = "--method exact patches every edge. Curves are measured."
    called = "change" if found.attrs["method"] == "exact" else "estimated change"
    change = f"of {subject_of(found.attrs)} if this edge alone has the corrupted activation"
    columns = [*_EDGES, with_ends("score", called, format_of(unit), change, significant="shown", interval=True)]
    return Report(
        title=f"Edges between the parts of {model}",
        read=f"{count(len(rows), 'edge')}, {count(pairs, 'pair')} of texts",
        finding=Finding(
            [first, *kept, second, *beyond, *describe_runs(found), *([third] if kept else [])],
            f"not tested; {tested}"
            if distinct < LEAST
            else f"95% interval over pairs; {tested}; more than 100% is possible: a circuit may overshoot",
            headline=first
            if distinct >= LEAST
            else f"No test possible: circuits are tested with {LEAST} or more pairs",
        ),
        tables=[
            Table(
                "edges",
                "Edges",
                columns,
                rows,
                reading=_SIGN,
                corrected="for all edges",
                least=f"{LEAST} or more pairs",
                terminal=12,
                page=100,
            ),
            Table("circuits", "Circuits of the best edges", _CIRCUITS, circuits),
        ],
        result=found,
        method=f"{INTERVALS} {EFFECTS}",
        notes=[*filter(None, [found.attrs.get("left_out")]), *note_of(found.attrs)],
        care=care | care_of_answers(found),
        hint=f"{first_pair(found)} The difference is that of {subject_of(found.attrs)} between both runs.",
    )


def named(part: str) -> tuple[str, str | None]:
    """The name of a part, heads as layer.head, and the side through which a head reads.

    >>> named("a1.h3<v>"), named("m0")
    (('1.3', 'value'), ('MLP 0', None))
    """
    head = _PART.fullmatch(part)
    return (f"{head[1]}.{head[2]}", _SIDES.get(head[3])) if head else (shown_component(part), None)


def chosen_circuits(found: xr.Dataset) -> dict[int, tuple[float, str]]:
    """Size and order of the circuit that each half of the pairs chooses, by half."""
    base = base_of(found)
    gaps, rest = (found.clean - base).values, (found.difference - base).transpose("pair", ...)
    of_half = {half: found.half.values == half for half in np.unique(found.half).tolist()}
    return {half: _smallest(rest[pairs].sum("pair") / gaps[pairs].sum()) for half, pairs in of_half.items()}


def _circuit(found: xr.Dataset, edges: int) -> list[str]:
    """The circuit that each half of the pairs chooses for the other, and how much of the difference it keeps there."""
    base = base_of(found)
    gaps, rest = (found.clean - base).values, (found.difference - base).transpose("pair", ...)
    half, chosen = found.half.values, chosen_circuits(found)
    of_pair = [chosen[side if len(chosen) == 1 else 1 - side] for side in half]
    kept = [rest[at].sel(order=[name, "random"], size=size).values for at, (size, name) in enumerate(of_pair)]
    share = by_document(np.array(kept), texts_of(found), over=gaps)
    if np.isnan(share.low[0]) if share.tested.all() else not has_one_sign(gaps):
        return [NO_SHARE]
    reached, by_chance = share.mean
    interval = "" if np.isnan(share.low[0]) else f" ({share.low[0]:z.0%} to {share.high[0]:z.0%})"
    keeps, random = f"{reached:z.0%}{interval} of the difference", f"{by_chance:z.0%}"
    sizes, names = ([*dict.fromkeys(values)] for values in zip(*sorted(chosen.values()), strict=True))
    how_many = " and ".join(f"{round(size * edges):,}" for size in sizes)
    share_of = " and ".join(f"{size:.1%}" for size in sizes)
    first = (
        f"A circuit of {how_many} of {edges:,} edges ({share_of}) keeps on average {keeps}; as many random edges "
        f"keep {random}."
    )
    if len(sizes) > 1:
        first = (
            f"Circuits of {how_many} of {edges:,} edges ({share_of}), one from each half of the pairs, keep on average "
            f"{keeps}; as many random edges keep {random}."
        )
    ranked = " or ".join(_RANKED[name] for name in names)
    between = f"{1 - _FAR:.0%} to {1 + _FAR:.0%}"
    if abs(1 - reached) > _FAR:
        return [first, f"No circuit keeps {between} of it on other pairs; its edges are {ranked}."]
    if len(sizes) > 1:
        return [
            first,
            f"Each is the smallest that keeps {between} of the difference where chosen; its edges are {ranked}.",
        ]
    return [first, f"It is the smallest that keeps {between} of the difference where chosen; its edges are {ranked}."]


def _smallest(kept: xr.DataArray) -> tuple[float, str]:
    """Size and order of the smallest circuit that keeps the difference, or of the one that comes closest."""
    sizes = [size for size in kept["size"].values.tolist() if size < 1] or [1.0]  # all edges keep it in any model
    far = {(size, name): abs(1 - float(kept.sel(size=size, order=name))) for size, name in product(sizes, _RANKED)}
    return min(far, key=lambda circuit: max(far[circuit], _FAR))
