"""The part of the report of `relations` that is about whether the best head of a relation matters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.report import schema

if TYPE_CHECKING:
    import xarray as xr

_TEST = (
    "A head matters if the margin is above 0 and falls significantly without it, and, where its layer has others, "
    "significantly more than without one of these on average (an intersection-union test); the false discovery rate "
    "over relations is 0.05. "
)
_OUT = "Without a head, its output is 0, and its weights are left out. "
_METHODS = {
    "ms": "Ablation: times of words by the set that the other half of the sounds chose, without the head with the "
    "smallest error. " + _OUT + "The margin is the error at a constant pace less that of the set. ",
    "share": "Ablation: contacts by the regression over all heads, without the head with the largest precision at L. "
    + _OUT
    + "The margin is the precision at L less that of pairs ranked by their separation. ",
    "nats": (
        "Ablation: of each relation the head with the best score, among those with more weight along it than uniform "
        "attention. Its output is replaced by its mean over the texts that are compared. The margin is the "
        "log-probability of the right text less that of the wrong one. "
    ),
}


def _unit(result: xr.Dataset) -> str:
    """The unit of the margin: nats of right and wrong texts, ms of times of words, or the share of contacts."""
    return str(result.ablated_change.attrs["units"])


def ablation_method(result: xr.Dataset) -> str:
    """How heads are ablated, for the methods of a paper."""
    return _METHODS[_unit(result)] + _TEST if "ablated" in result else ""


def ablation_sentences(result: xr.Dataset) -> list[str]:
    """The relations whose best head matters; nothing if none was ablated."""
    if "ablated" not in result:
        return []
    rows = [row for row in _rows(result) if row["matters"] is not None]
    if not rows:
        return []
    first = next((row for row in rows if row["matters"]), None)
    unit = _unit(result)
    if unit != "nats":
        return [_OF_UNIT[unit](rows[0])]
    if not any((row["margin_low"] or 0) > 0 for row in rows):
        return [
            "The model does not prefer right texts to wrong ones, so there is nothing that a head could matter for."
        ]
    if first is None:
        return ["No best head of a relation matters for the choice between right and wrong texts."]
    head = f"head {first['layer']}.{first['head']}, the best for {first['relation']}"
    falls = f"falls by {-first['change']:.2f} nats, from {first['margin']:.2f}"
    return [f"Without {head}, the margin of right over wrong texts {falls}."]


def _of_times(row: schema.Row) -> str:
    head, others = row["in_lists"], -(row["others"] or 0)
    if row["matters"]:
        return (
            f"Without head {head}, starts of words are {-row['change']:.0f} ms further off; without another head of "
            f"its layer, {others:.0f} ms."
        )
    return f"Head {head}, the best alone, does not matter for the times that the set gives."


def _of_contacts(row: schema.Row) -> str:
    head, others = row["in_lists"], -(row["others"] or 0)
    if row["matters"]:
        return (
            f"Without head {head}, the precision at L of all heads together falls by {-row['change']:.2f}; without "
            f"another head of its layer, by {others:.2f}."
        )
    return f"Head {head}, the best alone, does not matter for the contacts that all heads give together."


_OF_UNIT = {"ms": _of_times, "share": _of_contacts}


def ablation_tables(result: xr.Dataset) -> list[schema.Table]:
    """The table of the best head of each relation; none if none was ablated."""
    if "ablated" not in result:
        return []
    unit = _unit(result)
    title, margin, *of_texts = _WORDS[unit]
    quantities = (
        schema.Quantity("relation"),
        *(schema.HEAD if unit != "ms" else IN_LISTS),
        _PAIRS[unit],
        *of_texts,
        schema.with_ends("margin", unit=_UNITS[unit], meaning=margin),
        replace(_CHANGE, unit=_UNITS[unit]),
        replace(_OTHERS, unit=_UNITS[unit]),
        *_CERTAIN,
    )
    return [schema.Table("ablation", title, quantities, _rows(result), corrected=_ALL)]


def _rows(result: xr.Dataset) -> list[schema.Row]:
    """A row for each relation with pairs of texts, those whose margin falls furthest first."""
    rows: list[schema.Row] = []
    layers = dict(zip(result.layer.values.tolist(), result.get("decoder_layer", result.layer).values, strict=True))
    for number in np.flatnonzero(result.ablated_pairs.values > 0):
        one = result.isel(relation=int(number))
        row: schema.Row = {"relation": str(one.relation.item())}
        row |= {"layer": int(one.ablated_layer), "head": int(one.ablated_head), "pairs": int(one.ablated_pairs)}
        row["in_lists"] = f"{layers[row['layer']]}.{row['head']}"
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
#: Heads of a decoder of sounds.
IN_LISTS = (
    *(schema.Quantity(name, unit="count", detail="data") for name in ("layer", "head")),
    schema.Quantity("in_lists", "head", meaning="layer of the decoder and head, as in lists of alignment heads"),
)
_RIGHT = schema.Quantity(
    "right", "right first", "share", "share of pairs whose right text has the larger probability, unchanged"
)
_WORDS: dict[str, tuple[Any, ...]] = {
    "nats": (
        "Right and wrong texts without a head",
        "log-probability of the right text less that of the wrong one",
        _RIGHT,
    ),
    "ms": ("Times of words without a head", "error in ms at a constant pace less that of the chosen set"),
    "share": (
        "Contacts without a head",
        "precision at L of all heads together less that of pairs ranked by their separation",
    ),
}
_PAIRS = {
    "nats": schema.Quantity("pairs", unit="count", meaning="pairs of a right and a wrong text"),
    "ms": schema.Quantity("pairs", "sounds", "count"),
    "share": schema.Quantity("pairs", "proteins", "count"),
}
_UNITS = {"nats": "nats", "ms": "gain", "share": "above"}
_CHANGE = schema.Quantity(
    "change",
    meaning="change of the margin without the head",
    low="change_low",
    high="change_high",
    significant="matters",
    interval=True,
)
_OTHERS = schema.Quantity(
    "others", "other heads", meaning="the same without one of the other heads of its layer, on average"
)
_CERTAIN = (
    schema.Quantity(
        "rank", unit="share", meaning="share of heads of the layer without which it falls as far", detail="page"
    ),
    schema.Quantity("p", unit="p", meaning="p-value of the change, the larger one of both tests", detail="page"),
)
