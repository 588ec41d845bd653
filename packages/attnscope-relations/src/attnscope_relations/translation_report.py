"""Translations in the report of `relations`: error rates of alignments, next to the diagonal and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.report import schema
from attnscope.support.numbers import percent

if TYPE_CHECKING:
    import xarray as xr

_METHOD = (
    "Each target word is aligned to the source word with the largest weight in the row that predicts it. The error "
    "rate is 1 - (|A and S| + |A and P|) / (|A| + |S|) of the alignment A, sure links S and possible links P (Och and "
    "Ney 2003). "
)


def translation_method(result: xr.Dataset) -> str:
    """How error rates are measured; empty without them."""
    return _METHOD if "error_rate" in result else ""


def translation_sentences(result: xr.Dataset) -> list[str]:
    """The error rate of the chosen head where it was not chosen, next to the diagonal."""
    if "error_rate" not in result:
        return []
    row = _best(result)
    head = f"Head {row['layer']}.{row['head']} aligns best: error rate {percent(row['error_rate'])}"
    if row["held_out"] is None:
        return [f"{head}, diagonal {percent(row['diagonal'])}, random words {percent(row['chance'])}."]
    held_out = f"held out, {percent(row['held_out'])}"
    diagonal = f"the diagonal {percent(row['diagonal'])}"
    if row["better"] is not None:
        diagonal = f"{'' if row['better'] else 'not '}significantly below {diagonal}"
    return [f"{head}; {held_out}, {diagonal}; random words {percent(row['chance'])}."]


def translation_tables(result: xr.Dataset) -> list[schema.Table]:
    """The best head's error rate next to controls, and that of every head."""
    if "error_rate" not in result:
        return []
    names = ("error_rate", "error_rate_low", "error_rate_high", "error_rate_exchanged", "error_rate_untrained")
    columns = {name.removeprefix("error_rate_"): result[name] for name in names if name in result}
    rows = schema.rows_of(columns, result.error_rate)
    rows.sort(key=lambda row: row["error_rate"])
    return [
        schema.Table("alignment", "Alignment error rate", _BEST, [_best(result)]),
        schema.Table("alignment_heads", "Alignment error rate of every head", _ALL, rows, terminal=10),
    ]


def _best(result: xr.Dataset) -> schema.Row:
    layer, head = int(result.error_rate_best_layer), int(result.error_rate_best_head)
    best = result.sel(layer=layer, head=head)
    names = ("low", "high", "held_out", "held_out_low", "held_out_high", "diagonal", "chance", "exchanged", "untrained")
    row: schema.Row = {"layer": layer, "head": head, "error_rate": float(best.error_rate)}
    row |= {name: schema.value_of(best[f"error_rate_{name}"].item()) for name in names if f"error_rate_{name}" in best}
    row.setdefault("untrained", None)
    low = float(result.error_rate_below_diagonal_low)
    return row | {"better": bool(low > 0) if np.isfinite(low) else None}


_RATE = "1 - (|A and S| + |A and P|) / (|A| + |S|): the smaller, the better"
_ERROR = schema.Quantity("error_rate", "error rate", "percent", _RATE, low="low", high="high", interval=True)
_EXCHANGED = schema.Quantity("exchanged", unit="percent", meaning="control: links of other pairs of the same length")
_BEST = (
    *schema.HEAD,
    _ERROR,
    schema.Quantity(
        "held_out",
        "held out",
        "percent",
        "error rate of the head that is best in the other half of the pairs",
        low="held_out_low",
        high="held_out_high",
        interval=True,
    ),
    schema.Quantity("diagonal", unit="percent", meaning="control: the source word at the same place of its sentence"),
    schema.Quantity("chance", "random words", "percent", "control: random source words"),
    _EXCHANGED,
    schema.Quantity("untrained", unit="percent", meaning="the same head with fresh weights"),
    schema.Quantity(
        "better", detail="data", meaning="whether the interval of its difference from the diagonal is above 0"
    ),
)
_ALL = (
    *schema.HEAD,
    _ERROR,
    _EXCHANGED,
    schema.Quantity("untrained", unit="percent", meaning="the same head with fresh weights"),
)
