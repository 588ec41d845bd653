"""The report of `circuits`: which heads copy, which tokens and offsets they prefer, and which heads compose."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr

from attnscope.report.reads import reads
from attnscope.report.schema import HEAD, Finding, Quantity, Report, Row, Table, heads_by, rows_of
from attnscope.store.runs import skipped_note, skipped_of
from attnscope.support.numbers import count, significant

_MOST = 400  # pairs of heads in the table; the dataset has all
_TOKENS = 3  # in a cell
_HEADS = (
    *HEAD,
    Quantity(
        "copying",
        unit="share",
        meaning="how many eigenvalues of the path from embeddings to logits have a positive real part, as a share",
    ),
    Quantity(
        "copying_sum",
        "copying sum",
        "above",
        "how strongly: sum of the eigenvalues of the path from embeddings to logits, over the sum of their sizes; 1 "
        "copies tokens, −1 suppresses them",
        significant="copying_shown",
    ),
    Quantity("copying_p", "p of the sum", "p", "for randomly turned values", detail="page"),
    Quantity("copied", "copies", "text", "tokens whose own logit rises most if the head attends to them"),
    Quantity("suppressed", "suppresses", "text", "tokens whose own logit falls most", detail="page"),
    Quantity(
        "same_token",
        "same token",
        "deviations",
        "mean score of tokens with themselves, in standard deviations of the scores of all pairs",
        significant="same_token_shown",
    ),
    Quantity("same_token_p", "p of the same token", "p", "for randomly turned keys", detail="page"),
    Quantity("pairs", "query → key", "text", "pairs of tokens with the highest scores", detail="page"),
    Quantity(
        "peak_offset",
        "offset",
        "tokens",
        "offset with the highest score from positions alone",
        significant="peak_offset_shown",
    ),
    Quantity(
        "peak_offset_p", "p of the offset", "p", "for random phases (RoPE) or randomly turned keys", detail="page"
    ),
    Quantity("offset_score", "score by offset", "profile", detail="data"),
)
_PAIRS = (
    Quantity("from", "from head", meaning="head whose output is read"),
    Quantity("to", "to head", meaning="later head that reads it"),
    Quantity("through", meaning="what it reads it through: query, key or value"),
    Quantity("composition", unit="share", meaning="norm of the product of both, over both norms", significant="shown"),
    Quantity("random", unit="share", meaning="root mean square for random matrices with the same singular values"),
    Quantity("p", unit="p", meaning="for such matrices, before correction", detail="page"),
)


def pairs_of(circuits: xr.Dataset) -> list[Row]:
    """Every pair of heads and kind of composition, the strongest first."""
    columns = {"composition": circuits.composition, "p": circuits.composition_p, "shown": circuits.composition_shown}
    rows = rows_of({**columns}, circuits.composition)
    random = float(circuits.composition_random)
    for row in rows:
        row |= {
            "from": f"{row['from_layer']}.{row['from_head']}",
            "to": f"{row['layer']}.{row['head']}",
            "through": row["kind"],
            "random": random,
            "shown": None if row["p"] is None else row["shown"],
        }
    return sorted(rows, key=lambda row: -row["composition"])


def _heads(circuits: xr.Dataset) -> list[Row]:
    names = [one.name for one in _HEADS[2:] if one.name in circuits and one.unit not in {"text", "profile"}]
    names += [f"{name}_shown" for name in ("copying", "same_token", "peak_offset")]
    measured = circuits.copying.notnull() | circuits.same_token.notnull() | circuits.peak_offset.notnull()
    rows = rows_of({name: circuits[name] for name in names}, measured.where(measured))
    for row in rows:
        of_head = circuits.sel(layer=row["layer"], head=row["head"])
        for name in ("copying", "same_token", "peak_offset"):
            row[f"{name}_shown"] = None if row[f"{name}_p"] is None else bool(row[f"{name}_shown"])
        for name in ("copied", "suppressed"):
            row[name] = " ".join(repr(token) for token in of_head[name].values[:_TOKENS] if token) or None
        pairs = zip(of_head.query_token.values, of_head.key_token.values, strict=True)
        row["pairs"] = ", ".join(f"{query!r} → {key!r}" for query, key in list(pairs)[:_TOKENS] if query or key) or None
    return sorted(rows, key=lambda row: (row["copying_sum"] is None, -(row["copying_sum"] or 0.0)))


_SIGNS = "can copy tokens", "can suppress tokens"
_METHOD = (
    "Copying and composition are read off the products of weight matrices (Elhage et al. 2021). Under the null, "
    "matrices with the same singular values are turned at random; the step-up rule bounds the false discovery rate at "
    "5% (Benjamini and Hochberg 1995)."
)


def _strongest(pairs: list[Row]) -> str:
    """The strongest composition of each kind, in a sentence."""
    parts: list[str] = []
    for kind in ("key", "query", "value"):
        row = next((row for row in pairs if row["kind"] == kind), None)
        if row is not None:
            pair = f"{row['from']} → {row['to']} ({significant(row['composition'], 2)})"
            parts.append({"key": f"key {pair}", "query": f"query {pair}", "value": f"value {pair}"}[kind])
    random = significant(pairs[0]["random"], 2)
    return f"Strongest composition: {', '.join(parts)}; random matrices {random}."


@reads("circuits")
def report(circuits: xr.Dataset) -> Report:
    """The findings, tables and notes of a result of `circuits`."""
    heads, pairs = _heads(circuits), pairs_of(circuits)
    copying = [row for row in heads if row["copying_shown"] and row["copying_sum"] > 0]
    tested = sum(row["copying_p"] is not None for row in heads)
    opposite = sum(bool(row["copying_shown"]) for row in heads) - len(copying)
    sentences: list[str] = []
    if tested:
        sentences.append(
            f"By their weight matrices alone, {len(copying)} of {tested} heads can copy tokens and {opposite} can "
            "suppress them, beyond chance."
        )
    sentences += [_strongest(pairs)] if pairs else []
    notes = skipped_note(skipped_of(circuits))
    if circuits.attrs["unembedding"] == "embeddings":
        notes.append("The logits are not a linear function of the residual stream. Copying is into the embeddings.")
    unknown = json.loads(circuits.attrs["unverified"])
    if unknown:
        layers = ", ".join(map(str, unknown))
        notes.append(f"After these layers the residual stream changes in a way that attnscope does not know: {layers}.")
    care = {
        "Weights show what heads can do, not what they do on a text.": "Other heads and feed-forward parts between two "
        "heads are left out. attnscope intervene measures whether a head matters."
    }
    if circuits.attrs["norms"]:
        care["Norms count without their denominator."] = (
            "It is one positive number for each token. Ratios and signs do not depend on it."
        )
    widest = np.isfinite(circuits.composition_p.values).sum()
    return Report(
        title=f"Circuits in the weights of {circuits.attrs['model']}",
        read=f"{count(len(heads), 'head')}, {count(int(widest), 'composition')}, "
        f"{count(int(circuits.attrs['vocabulary']), 'token')} of the vocabulary",
        finding=Finding(
            sentences or ["No matrix of this model is known."],
            "significant next to random matrices, corrected for all heads and pairs (false discovery rate 5%)",
            heads_by(heads, lambda row: _SIGNS[row["copying_sum"] < 0] if row["copying_shown"] else "", *_SIGNS)
            if tested
            else {},
        ),
        tables=[
            Table("heads", "Heads", _HEADS, heads, corrected="for all heads"),
            Table(
                "pairs", "Composition", _PAIRS, pairs[:_MOST], corrected="for all pairs and kinds", terminal=8, page=100
            ),
        ],
        result=circuits,
        notes=notes,
        care=care,
        colour="copying_sum",
        method=_METHOD,
    )
