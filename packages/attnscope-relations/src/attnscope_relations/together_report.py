"""The part of the report of `relations` that is about all heads together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.report import schema
from attnscope.statistics.units import LEAST
from attnscope.support.numbers import count, percent
from attnscope_relations.summary import SIZE
from attnscope_relations.together import DIRECTIONS, FOLDS, STRENGTH

if TYPE_CHECKING:
    import xarray as xr

_LARGEST = 5  # weights of each relation in the table
_ANY = "any (tree)"

_METHOD = (
    "Heads together: logistic regression (scikit-learn, L2 penalty, C = "
    f"{STRENGTH:g}) of whether a query belongs to a word, from the weights of all heads on it and back, standardised "
    "(Clark et al. 2019; Rao et al. 2021), fitted to all right words and at most 20 others of each query. Each query "
    f"gets the most probable word by the regression of other documents ({FOLDS} folds); the best head and the best "
    "offset are chosen on those documents too, the head by its weights in either direction. All heads together count "
    "if they are significantly above the offset, a random visible word and the untrained copy (an intersection-union "
    f"test), by {SIZE:g} or more; the false discovery rate over relations is 0.05. "
)
_OF_TREES = (
    "Trees: maximum spanning arborescences (Chu and Liu 1965, Edmonds 1967) over the log odds of the same regression "
    "for any relation, with the root given and punctuation left out; for one head over its weights (Raganato and "
    "Tiedemann 2018). "
)


def together_method(result: xr.Dataset) -> str:
    """How all heads are put together, for the methods of a paper."""
    return ("" if "together" not in result else _METHOD) + ("" if "uas" not in result else _OF_TREES)


def together_sentences(result: xr.Dataset) -> list[str]:
    """The findings of all heads together; none if they were not put together."""
    if "together" not in result:
        return []
    sentences: list[str] = []
    tested = np.isfinite(result.together_p.values)
    if tested.any():
        shown, gains = int(result.together_shown.sum()), int(result.together_gains.sum())
        of = count(int(tested.sum()), "relation")
        if shown:
            sentences.append(
                f"All heads together link {shown} of {of}, above every control; for {gains} they are significantly "
                "better than the best head."
            )
        else:
            sentences.append("All heads together link no relation, significantly and above every control.")
    elif "contact_together" not in result:
        files = "files of proteins" if "precision" in result else "documents"
        sentences.append(f"Heads are not put together: --together needs {LEAST} or more {files} with links.")
    if "uas" in result and np.isfinite(result.uas.sel(parser="together")):
        uas = {name: float(result.uas.sel(parser=name)) for name in result.parser.values}
        best = max((name for name in uas if name != "together"), key=lambda name: np.nan_to_num(uas[name], nan=-1.0))
        sentences.append(
            f"Trees of all heads have {percent(uas['together'])} of words at the right head word ({_PARSERS[best]}: "
            f"{percent(uas[best])})."
        )
    return sentences


def tree_headline(result: xr.Dataset) -> str:
    """How good trees of all heads are, next to the best of the other parsers; empty without trees."""
    if "uas" not in result or not np.isfinite(result.uas.sel(parser="together")):
        return ""
    uas = {name: float(result.uas.sel(parser=name)) for name in result.parser.values}
    best = max((name for name in uas if name != "together"), key=lambda name: np.nan_to_num(uas[name], nan=-1.0))
    return f"All heads together: UAS {uas['together']:.2f} ({_PARSERS[best]}: {uas[best]:.2f})"


def together_tables(result: xr.Dataset) -> list[schema.Table]:
    """Tables of all heads together: of relations, of trees, and of the largest weights of heads."""
    if "together" not in result:
        return []
    rows = [_relation(result.isel(relation=number)) for number in range(result.sizes["relation"])]
    rows = [row for row in rows if row["together"] is not None]
    rows.sort(key=lambda row: (not row["shown"], -row["above"]))
    weights = [
        row
        for name in [row["relation"] for row in rows]
        for row in _weights(name, result.together_weight.sel(relation=name))
    ]
    made = [schema.Table("together", "Heads together", _TOGETHER, rows, corrected="for all relations")]
    if "uas" in result:
        weights += _weights(_ANY, result.uas_weight)
        made.append(schema.Table("trees", "Trees", _TREES, _parsers(result)))
    made.append(
        schema.Table(
            "weights",
            "Weights of heads",
            _WEIGHTS,
            weights,
            reading=f"The {_LARGEST} largest coefficients of each relation, of standardised weights.",
            terminal=0,
        )
    )
    return made


def _relation(of_relation: xr.Dataset) -> schema.Row:
    """All heads together for one relation."""
    row: schema.Row = {"relation": str(of_relation.relation.item())}
    for name in ("together", "together_low", "together_high"):
        row[name] = schema.value_of(of_relation[name].sel(by="together").item())
    for name, method in (("one", "one head"), ("offset", "offset"), ("chance", "chance"), ("untrained", "untrained")):
        row[name] = schema.value_of(of_relation.together.sel(by=method).item())
    direction, layer, head = of_relation.together_feature.values.tolist()
    row |= {"layer": layer, "head": head, "direction": DIRECTIONS[direction]}
    for name in ("above", "gain", "gain_low", "gain_high"):
        row[name] = schema.value_of(of_relation[f"together_{name}"].item())
    tested = bool(np.isfinite(of_relation.together_p))
    row["shown"] = bool(of_relation.together_shown) if tested else None
    row["gains"] = bool(of_relation.together_gains) if tested else None
    return row


def _weights(name: str, weights: xr.DataArray) -> list[schema.Row]:
    """The largest coefficients of a relation."""
    values = weights.transpose("direction", "layer", "head").values
    order = np.argsort(-np.nan_to_num(np.abs(values), nan=-1.0), axis=None, kind="stable")[:_LARGEST]
    rows: list[schema.Row] = []
    for direction, layer, head in zip(*np.unravel_index(order, values.shape), strict=True):
        value = schema.value_of(values[direction, layer, head])
        if value:
            where = {"layer": int(weights.layer[layer]), "head": int(head), "direction": DIRECTIONS[direction]}
            rows.append({"relation": name, **where, "weight": value})
    return rows


def _parsers(result: xr.Dataset) -> list[schema.Row]:
    """A row for each way to choose trees."""
    rows: list[schema.Row] = []
    for name in result.parser.values.tolist():
        of_parser = result.sel(parser=name)
        row: schema.Row = {"parser": _PARSERS[name]}
        row |= {part: schema.value_of(of_parser[part].item()) for part in ("uas", "uas_low", "uas_high")}
        row["shown"] = bool(result.uas_shown) if name == "together" else None
        rows.append(row)
    _, layer, head = result.uas_feature.values.tolist()
    rows[1]["parser"] += f" ({layer}.{head})"
    return [row for row in rows if row["uas"] is not None]


_PARSERS = {
    "together": "all heads together",
    "one head": "the best head alone",
    "offset": "the best fixed offset",
    "word before": "each word at the one before",
    "word after": "each word at the one after",
    "untrained": "all heads with fresh weights",
}
_DIRECTION = "forward: from the query to the other word; back: from the other word to the query"
_TOGETHER = (
    schema.Quantity("relation"),
    schema.Quantity(
        "together",
        unit="share",
        meaning="share of queries whose most probable word by all heads is right, on other documents",
        low="together_low",
        high="together_high",
        interval=True,
    ),
    schema.Quantity("one", "one head", "share", "the same for the head that is best on other documents"),
    schema.Quantity("layer", unit="count", detail="data"),
    schema.Quantity("head", "which", "head", "the head that is best alone over all documents"),
    schema.Quantity("direction", meaning=_DIRECTION, detail="page"),
    schema.Quantity("offset", unit="share", meaning="control: a fixed offset, chosen on other documents"),
    schema.Quantity("chance", unit="share", meaning="control: a random visible word", detail="page"),
    schema.Quantity("untrained", unit="share", meaning="control: all heads together with fresh weights"),
    schema.Quantity("above", unit="above", meaning="together less the largest control", significant="shown"),
    schema.Quantity(
        "gain", unit="above", meaning="together less one head", low="gain_low", high="gain_high", significant="gains"
    ),
)
_WEIGHTS = (
    schema.Quantity("relation"),
    *schema.HEAD,
    schema.Quantity("direction", meaning=_DIRECTION),
    schema.Quantity("weight", unit="deviations", meaning="coefficient of the standardised weight, in log odds"),
)
_TREES = (
    schema.Quantity("parser", meaning="how the head of each word is chosen"),
    schema.Quantity(
        "uas",
        "UAS",
        "share",
        "share of words with the right head word, on other documents; without punctuation and roots",
        low="uas_low",
        high="uas_high",
        significant="shown",
        interval=True,
    ),
)
