"""The report of `edges`: the edges that carry the answer, and circuits of the best ones."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from attnscope.intervention.patch_findings import SEVERAL
from attnscope.measure.documents import LEAST
from attnscope.results.schema import Finding, Quantity, Report, Table, rows_of, with_ends
from attnscope.support.arguments import reads
from attnscope.support.numbers import are, count, significant

if TYPE_CHECKING:
    import xarray as xr

_EDGES = (
    Quantity("sender"),
    Quantity("sender_stack", "stack", meaning="encoder, decoder, or the decoder's cross-attention, of either part"),
    Quantity("receiver", meaning="queries, keys or values of a head, an MLP, or the logits"),
    Quantity("receiver_stack", "stack"),
)
_CHANGE = "of answer minus wrong answer if this edge alone has the corrupted activation"
ORDERS = {
    "raising": ("edges for the answer", "share of the difference kept with the edges that raise the answer most"),
    "changing": ("largest edges", "the same with the edges that change it most"),
    "random": ("random edges", "the same with as many random edges"),
}
_KEPT = [with_ends(name, one[0], "percent", one[1], interval=name == "raising") for name, one in ORDERS.items()]
_CIRCUITS = (Quantity("size", "share of edges", "percent"), Quantity("edges", unit="count"), *_KEPT)
_RANKED = {"raising": "those that raise the answer most", "changing": "those with the largest scores"}
_MOST = 0.8  # of the difference, as a circuit keeps it


@reads("edges")
def report(found: xr.Dataset) -> Report:
    """Scores of edges, and how much of the difference circuits keep."""
    pairs, model, unit = found.attrs["pairs"], found.attrs["model"], found.attrs.get("unit", "logits")
    values: dict[str, xr.DataArray | None] = {name: found[name] for name in ("score", "score_low", "score_high")}
    values |= {"shown": found.shown.astype(object).where(found.tested)}
    values |= {name: found.get(name) for name in ("sender_stack", "receiver_stack")}
    rows = sorted(rows_of(values, found.score), key=lambda row: -abs(row["score"]))
    ends = {name + end: found[f"faithfulness{end}"].sel(order=name) for name in ORDERS for end in ("", "_low", "_high")}
    circuits = rows_of(ends | {"edges": (found["size"] * len(rows)).round()}, found["size"])
    less = [row for row in circuits if row["size"] < 1] or circuits  # all edges keep all of it in any model
    # the smallest circuit that keeps enough, or the one that keeps most
    one, name = max(product(less, _RANKED), key=lambda circuit: min(circuit[0][circuit[1]], _MOST))
    own, low, high = (one[name + end] for end in ("", "_low", "_high"))
    interval = "" if low is None else f" ({low:z.0%} to {high:z.0%})"
    which = f"smallest circuit that keeps {_MOST:.0%}" if own >= _MOST else f"best circuit (none keeps {_MOST:.0%})"
    first = f"The {which} has {one['size']:.1%} of the edges ({one['edges']:.0f} of {len(rows)}), {_RANKED[name]}."
    kept = f"It keeps {own:z.0%}{interval} of the difference; as many random edges keep {one['random']:z.0%}."
    shown = [row for row in rows if row["shown"]]
    largest = (shown or rows)[0]
    most = f"{largest['sender']} → {largest['receiver']} ({significant(largest['score'], 2)} {unit})"
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
    called = "change" if found.attrs["method"] == "exact" else "estimated change"
    columns = [*_EDGES, with_ends("score", called, unit, _CHANGE, significant="shown", interval=True)]
    return Report(
        title=f"Edges between the parts of {model}",
        read=f"{count(len(rows), 'edge')}, {count(pairs, 'pair')} of texts",
        finding=Finding(
            [f"{first} {kept}", second, third],
            f"{'not tested' if largest['shown'] is None else 'significant at 5%, corrected for all edges'}; {tested}",
            headline=first,
        ),
        tables=[
            Table("edges", "Edges", columns, rows, corrected="for all edges", least=f"{LEAST} or more pairs", page=100),
            Table("circuits", "Circuits of the best edges", _CIRCUITS, circuits),
        ],
        result=found,
        care=care | (SEVERAL if unit == "nats" else {}),
    )
