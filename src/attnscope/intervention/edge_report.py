"""The report of `edges`: the edges that carry the answer, and circuits of the best ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.intervention.patch_findings import SEVERAL
from attnscope.measure.documents import LEAST
from attnscope.results.schema import Finding, Quantity, Report, Table, rows_of
from attnscope.support.arguments import reads
from attnscope.support.numbers import are, count, significant

if TYPE_CHECKING:
    import xarray as xr

_EDGES = (
    Quantity("sender"),
    Quantity("receiver", meaning="queries, keys or values of a head, an MLP, or the logits"),
    Quantity(
        "score", "change", "logits", "of answer minus wrong answer if this edge alone has the corrupted activation",
        low="score_low", high="score_high", significant="shown", interval=True,
    ),
)  # fmt: skip
ORDERS = {
    "raising": (
        "edges for the answer",
        "share of the difference that is kept with the edges that raise the answer most",
    ),
    "changing": ("largest edges", "the same with the edges that change it most"),
    "random": ("random edges", "the same with as many random edges"),
}
_KEPT = [
    Quantity(name, heading, "percent", meaning, low=f"{name}_low", high=f"{name}_high", interval=name == "raising")
    for name, (heading, meaning) in ORDERS.items()
]
_CIRCUITS = (Quantity("size", "share of edges", "percent"), Quantity("edges", unit="count"), *_KEPT)
_MOST = 0.8  # of the difference, as a circuit keeps it


@reads("edges")
def report(found: xr.Dataset) -> Report:
    """Scores of edges, and how much of the difference circuits keep."""
    pairs, model = found.attrs["pairs"], found.attrs["model"]
    columns: dict[str, xr.DataArray | None] = {name: found[name] for name in ("score", "score_low", "score_high")}
    columns |= {"shown": found.shown.astype(object).where(found.tested)}
    rows = sorted(rows_of(columns, found.score), key=lambda row: -abs(row["score"]))
    kept = {name + end: found[f"faithfulness{end}"].sel(order=name) for name in ORDERS for end in ("", "_low", "_high")}
    circuits = rows_of(kept | {"edges": (found["size"] * len(rows)).round()}, found["size"])
    less = [row for row in circuits if row["size"] < 1] or circuits  # all edges keep all of it in any model
    one = next((row for row in less if row["raising"] >= _MOST), max(less, key=lambda row: row["raising"]))
    interval = "" if one["raising_low"] is None else f" ({one['raising_low']:.0%} to {one['raising_high']:.0%})"
    first = (
        f"{one['size']:.1%} of the edges ({one['edges']:.0f} of {len(rows)}) keep {one['raising']:z.0%}{interval} of "
        f"the difference; as many random edges keep {one['random']:z.0%}."
    )
    shown = [row for row in rows if row["shown"]]
    largest = (shown or rows)[0]
    most = f"{largest['sender']} → {largest['receiver']} ({significant(largest['score'], 2)} logits)"
    second = f"{len(shown)} of {len(rows)} edges have a significant score, the largest {most}."
    if not shown:
        second = f"None of {len(rows)} edges has a significant score; the largest score is that of {most}."
    if largest["shown"] is None:
        second = f"There are no intervals: they need {LEAST} or more pairs of one kind, and there {are(pairs)}."
    cpr, by_chance = (f"{float(found.cpr.sel(order=name)):.2f}" for name in ("raising", "random"))
    cmd, far = (f"{float(found.cmd.sel(order=name)):.2f}" for name in ("changing", "random"))
    third = (
        f"Area under the curve (CPR): {cpr} with the best edges, {by_chance} with random ones. "
        f"Area up to 1 (CMD): {cmd} with the largest edges, {far} with random ones."
    )
    tested = "circuits are chosen on one half of the pairs and tested on the other"
    if pairs < LEAST:
        tested = f"circuits are chosen and tested on the same pairs, with fewer than {LEAST} of them"
    care = {"Other pairs may need other edges.": "Pairs from one template say little about other sentences."}
    if found.attrs["method"] != "exact":
        care["Scores are estimates from gradients."] = "--method exact patches every edge. Curves are measured."
    return Report(
        title=f"Edges between the parts of {model}",
        read=f"{count(len(rows), 'edge')}, {count(pairs, 'pair')} of texts",
        finding=Finding(
            [first, second, third],
            f"{'not tested' if largest['shown'] is None else 'significant at 5%, corrected for all edges'}; {tested}",
        ),
        tables=[
            Table("edges", "Edges", _EDGES, rows, corrected="for all edges", least=f"{LEAST} or more pairs", page=100),
            Table("circuits", "Circuits of the best edges", _CIRCUITS, circuits),
        ],
        result=found,
        care=care | (SEVERAL if found.attrs.get("summed") else {}),
    )
