"""The part of the report of `relations` that is about whether the best head of a relation matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.report import schema

if TYPE_CHECKING:
    import xarray as xr

_METHOD = (
    "Ablation: of each relation the head with the best score, among those with more weight along it than uniform "
    "attention. Its output is replaced by its mean over the texts that are compared. The margin is the "
    "log-probability of the right text less that of the wrong one. A head matters if the margin is above 0 and falls "
    "significantly without it, and, where its layer has others, significantly more than without one of these on "
    "average (an intersection-union test); the false discovery rate over relations is 0.05. "
)


def ablation_method(result: xr.Dataset) -> str:
    """How heads are ablated, for the methods of a paper."""
    return _METHOD if "ablated" in result else ""


def ablation_sentences(result: xr.Dataset) -> list[str]:
    """The relations whose best head matters; nothing if none was ablated."""
    if "ablated" not in result:
        return []
    rows = [row for row in _rows(result) if row["matters"] is not None]
    if not rows:
        return []
    if not any((row["margin_low"] or 0) > 0 for row in rows):
        return [
            "The model does not prefer right texts to wrong ones, so there is nothing that a head could matter for."
        ]
    first = next((row for row in rows if row["matters"]), None)
    if first is None:
        return ["No best head of a relation matters for the choice between right and wrong texts."]
    head = f"head {first['layer']}.{first['head']}, the best for {first['relation']}"
    falls = f"falls by {-first['change']:.2f} nats, from {first['margin']:.2f}"
    return [f"Without {head}, the margin of right over wrong texts {falls}."]


def ablation_tables(result: xr.Dataset) -> list[schema.Table]:
    """The table of the best head of each relation; none if none was ablated."""
    if "ablated" not in result:
        return []
    return [schema.Table("ablation", "Right and wrong texts without a head", _ABLATION, _rows(result), corrected=_ALL)]


def _rows(result: xr.Dataset) -> list[schema.Row]:
    """A row for each relation with pairs of texts, those whose margin falls furthest first."""
    rows: list[schema.Row] = []
    for number in np.flatnonzero(result.ablated_pairs.values > 0):
        one = result.isel(relation=int(number))
        row: schema.Row = {"relation": str(one.relation.item())}
        row |= {"layer": int(one.ablated_layer), "head": int(one.ablated_head), "pairs": int(one.ablated_pairs)}
        row |= {name: schema.value_of(one[variable].item()) for name, variable in _COLUMNS.items()}
        row["matters"] = None if row["p"] is None else bool(one.ablated_matters)
        rows.append(row)
    return sorted(rows, key=lambda row: (not row["matters"], row["change"]))


_ALL = "for all relations"
_COLUMNS = {
    "margin": "margin",
    "margin_low": "margin_low",
    "margin_high": "margin_high",
    "right": "margin_right",
    "change": "ablated",
    "change_low": "ablated_low",
    "change_high": "ablated_high",
    "others": "ablated_others",
    "rank": "ablated_rank",
    "p": "ablated_p",
}
_ABLATION = (
    schema.Quantity("relation"),
    *schema.HEAD,
    schema.Quantity("pairs", unit="count", meaning="pairs of a right and a wrong text"),
    schema.Quantity(
        "right", "right first", "share", "share of pairs whose right text has the larger probability, unchanged"
    ),
    schema.with_ends("margin", unit="nats", meaning="log-probability of the right text less that of the wrong one"),
    schema.Quantity(
        "change",
        unit="nats",
        meaning="change of the margin without the head",
        low="change_low",
        high="change_high",
        significant="matters",
        interval=True,
    ),
    schema.Quantity(
        "others", "other heads", "nats", "the same without one of the other heads of its layer, on average"
    ),
    schema.Quantity(
        "rank", unit="share", meaning="share of heads of the layer without which it falls as far", detail="page"
    ),
    schema.Quantity("p", unit="p", meaning="p-value of the change, the larger one of both tests", detail="page"),
)
