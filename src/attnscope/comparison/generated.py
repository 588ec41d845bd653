"""Report of a generation: heads that shift attention to the model's own output, spans, and texts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import xarray as xr

from attnscope.measure.stored import notes_of
from attnscope.report.reads import reads
from attnscope.report.schema import HEAD, Finding, Quantity, Report, Row, Table, heads_by, rows_of, with_ends
from attnscope.statistics.effects import INTERVALS, by_document
from attnscope.statistics.intervals import FEW
from attnscope.statistics.tests import above_zero
from attnscope.statistics.units import membership
from attnscope.support.numbers import count, with_nulls

_ROUNDING = 1e-5  # rounding of weights in 32 bits
# smallest shift of a row's weight: binned positions alone shift an untrained ALiBi head by 0.006
_LEAST_TURN = 0.02
_SHORTEST = 6  # new tokens of a text that is split into thirds

_FIRST, _LAST = "First third of the new tokens", "Last third"
_OWN = "weight on the model's own output in the last third of the new tokens"
_EQUAL = "the same weight on every key that a query sees"
_POSITIONS = "a head with the same weight at each distance and on the first token"
_GROWTH = "growth of the share on the own output, minus the larger growth of uniform and positions"
_TURN = with_ends("turn", "shift", "change", _GROWTH, significant="beyond_chance", interval=True)
_HEADS = (
    *HEAD,
    Quantity("attention", detail="data"),
    Quantity("own_first", "own output", "share", detail="page", group=_FIRST),
    Quantity("equal_first", "uniform", "share", detail="page", group=_FIRST),
    Quantity("positions_first", "positions", "share", detail="page", group=_FIRST),
    Quantity("own_last", "own output", "share", _OWN, group=_LAST),
    Quantity("equal_last", "uniform", "share", _EQUAL, group=_LAST),
    Quantity("positions_last", "positions", "share", _POSITIONS, group=_LAST),
    _TURN,
    Quantity(
        "beyond_chance", "beyond chance", meaning="the shift is at least 0.02 and significant, corrected for all heads"
    ),
)
_SPANS = (
    Quantity("span"),
    Quantity("weight", "all heads", "share", "mean weight on the span", group="All heads"),
    Quantity("equal", "uniform", "share", _EQUAL, group="All heads"),
    Quantity("positions", "positions", "share", _POSITIONS, group="All heads"),
    Quantity("layer", unit="count", detail="data"),
    Quantity(
        "head", "most above", "head", "the head furthest above the larger of uniform and positions", group="Most above"
    ),
    Quantity("most", "its weight", "share", group="Most above"),
    Quantity("most_equal", "its uniform", "share", group="Most above"),
    Quantity("most_positions", "its positions", "share", group="Most above"),
)
_TEXTS = tuple(
    Quantity(name, unit="text", detail="data")
    for name in ("source", "prompt_tokens", "new_tokens", "written", "token_ids")
)
CARE = {
    "The row of a new token is that of the token before it, which predicts it.": "The model has read no later token.",
    "Shares grow by themselves.": "The model's own output becomes longer and is always nearest. Uniform attention and "
    "the head's positions show how much that alone gives.",
    "Positions are binned by doublings.": "Weight is taken as even within a bin, which may move a share by about 0.01.",
    "Untrained models shift too.": "Their heads attend to certain positions.",
    "A weight is not an explanation.": "It does not show whether the output depends on it.",
}


_SHIFTS = "shift to the model's own output"


@reads("generate")
def report(results: xr.Dataset) -> Report:
    rows, uses = own_output_shares(results), span_uses(results)
    new = results.length.values
    tokens = f"{new.min()}" if new.min() == new.max() else f"{new.min()} to {new.max()}"
    heads = _heads(results, rows)
    notes = [*notes_of(results).values(), explain_dashes(uses)]
    if "full_pass" in results.attrs:
        notes.append(
            f"Check on the first text: weights equal those of one full pass within {results.attrs['full_pass']}."
        )
    spans = [Quantity(f"weight {span}", unit="share", detail="data") for span in results.span.values]
    model = str(results.attrs.get("model", "the model"))
    tested = any(row["beyond_chance"] is not None for row in rows)
    return Report(
        title=f"Where {model} attends while it writes",
        read=f"{count(results.sizes['sequence'], 'prompt')}, {tokens} new tokens each, {count(len(heads), 'head')}",
        finding=Finding(
            [f"{describe_own_output(rows)}."],
            "shift: growth from the first to the last third of new tokens beyond uniform attention and the head's "
            f"positions; {_LEAST_TURN} or more and significant at 5%, corrected for all heads"
            if tested
            else "not tested",
            heads_by(rows, lambda row: _SHIFTS * bool(row["beyond_chance"]), _SHIFTS) if tested else {},
        ),
        tables=[
            Table(
                "heads",
                "Heads that shift to the model's own output",
                (*_HEADS, *spans),
                heads,
                terminal=10 if rows else 0,
                corrected="for all heads",
                least=f"{FEW} texts whose outputs end differently",
            ),
            Table("spans", "Spans: mean weight over all texts and new tokens", _SPANS, uses),
            Table("texts", "Texts", _TEXTS, _texts(results), terminal=0, page=0),
        ],
        result=results,
        notes=[note for note in notes if note],
        care=CARE,
        method="Each share of weight is compared with uniform attention, and with a head of the same weights at each "
        f"offset and on the first token, by iterative proportional fitting. {INTERVALS} A shift is significant at 5%, "
        "one-sided, if its t exceeds the largest of all heads under random signs of the texts (Winkler et al. 2014).",
    )


def _texts(results: xr.Dataset) -> list[Row]:
    """Rows of the texts, in which their model is known to write them out."""
    names = {"source": "source", "prompt_length": "prompt_tokens", "length": "new_tokens", "written": "written"}
    if "written" not in results:
        return []
    rows = rows_of({column: results[name] for name, column in names.items()}, results.length)
    return [
        {name: row[name] for name in names.values()} | {"token_ids": ids[:length].tolist()}
        for row, ids, length in zip(rows, results.token_id.values, results.length.values, strict=True)
    ]


def _heads(results: xr.Dataset, shifts: Sequence[Row]) -> list[Row]:
    """Rows of the decoder's self-attention heads, the largest shift first, then of cross-attention heads."""
    over, exist = ("sequence", "step"), results.entropy.notnull().any(("sequence", "step")).transpose("layer", "head")
    weight = results.span_weight.mean(over)
    columns = {f"weight {span}": weight.sel(span=span) for span in results.span.values}
    every = {
        (row["layer"], row["head"]): row
        for row in rows_of({"attention": results.layer_kind, **columns}, exist.where(exist))
    }
    first = {(row["layer"], row["head"]): row for row in shifts}
    return [first.get(head, {}) | every[head] for head in {**first, **every}]


def span_uses(results: xr.Dataset) -> list[Row]:
    """A row of `_SPANS` for each span of the texts, in their order."""
    over = ("sequence", "step")
    weight, equal, positions = (
        results[f"{name}span_weight"].mean(over).transpose("span", "layer", ...).values
        for name in ("", "equal_", "position_")
    )
    equal = np.where(np.isnan(weight), np.nan, equal[..., None])
    rows: list[Row] = []
    for number, span in enumerate(results.span.values):
        if np.isnan(weight[number]).all():
            continue
        shares = {"weight": weight[number], "equal": equal[number], "positions": positions[number]}
        above = shares["weight"] - np.fmax(shares["equal"], shares["positions"])
        layer, head = np.unravel_index(np.nanargmax(above), above.shape)
        measured = ~np.isnan(weight[number])
        row = {"span": str(span)} | {name: float(values[measured].mean()) for name, values in shares.items()}
        # the head furthest above the larger of the other two; none if all keys belong to the span
        most: Row = {"layer": int(results.layer[layer]), "head": int(results["head"][head])}
        most |= {
            name: float(values[layer, head])
            for name, values in zip(("most", "most_equal", "most_positions"), shares.values(), strict=True)
        }
        row |= most if above[layer, head] > _ROUNDING else dict.fromkeys(most)
        rows.append(with_nulls(row))
    return rows


def explain_dashes(uses: Sequence[Row]) -> str:
    """Why a table of spans has empty cells; empty if it has none."""
    none = [use for use in uses if use["head"] is None]
    whole = ", ".join(use["span"] for use in none if use["equal"] >= 1 - _ROUNDING)
    below = ", ".join(use["span"] for use in none if use["equal"] < 1 - _ROUNDING)
    without = ", ".join(use["span"] for use in uses if use["positions"] is None)
    sentences = [f"All keys belong to the span: {whole}."] if whole else []
    sentences += [f"No head is above both uniform attention and its positions: {below}."] if below else []
    sentences += [f"Keys of another text have no positions: {without}."] if without else []
    return " ".join(sentences)


def own_output_shares(results: xr.Dataset) -> list[Row]:
    """How far each head of the decoder's self-attention shifts to the model's own output; the largest shift first.

    The shift is the growth of its share of weight there, from the first third of the new tokens to the last, minus the
    larger growth by uniform attention or by its positions alone.
    """
    long = np.flatnonzero(results.length.values >= _SHORTEST)
    names = {"own": "span_weight", "equal": "equal_span_weight", "positions": "position_span_weight"}
    thirds = {name: _thirds(results, variable, long) for name, variable in names.items()}
    shape = thirds["own"].shape
    exist = np.isfinite(thirds["own"]).all((0, 1)) if len(long) else np.zeros(shape[2:], dtype=bool)
    thirds = {name: np.broadcast_to(values, shape) for name, values in thirds.items()}
    own, equal, positions = (np.diff(values, axis=1)[:, 0] for values in thirds.values())
    larger = np.where(positions.mean(0) >= equal.mean(0), positions, equal) if len(long) else positions
    each = own - larger  # (text, layer, head)
    member = membership(_endings(results, long))
    significant = above_zero([member @ each[:, exist]], len(member))[0] if len(member) >= FEW else None
    rows: list[Row] = []
    for number, (layer, head) in enumerate(np.argwhere(exist).tolist()):
        row: Row = {"layer": int(results.layer[layer]), "head": int(results["head"][head])}
        for name, values in thirds.items():
            row[f"{name}_first"], row[f"{name}_last"] = values[:, :, layer, head].mean(0).tolist()
        interval, turn = by_document(each[:, layer, head], _endings(results, long)), float(each[:, layer, head].mean())
        row |= {"turn": turn, "turn_low": float(interval.low), "turn_high": float(interval.high)}
        row["beyond_chance"] = None if significant is None else bool(significant[number] and turn >= _LEAST_TURN)
        rows.append(with_nulls(row))
    return sorted(rows, key=lambda row: -row["turn"])


def _endings(results: xr.Dataset, texts: np.ndarray) -> list[Hashable]:
    """The tokens of the last third of each output: outputs that end in the same loop are not independent."""
    if "token_id" not in results.coords:
        return list(texts.tolist())
    lengths, tokens = results.length.values, results.token_id.transpose("sequence", "step").values
    return [frozenset(tokens[text, lengths[text] - lengths[text] // 3 : lengths[text]].tolist()) for text in texts]


def describe_own_output(rows: Sequence[Row]) -> str:
    """How many heads significantly shift to the model's own output."""
    if not rows:
        return f"Shifts to the model's own output need texts with {_SHORTEST} or more new tokens"
    if rows[0]["turn"] < _LEAST_TURN:
        return (
            f"No head of {len(rows)} shifts to the model's own output by {_LEAST_TURN:.0%} of its weight or more, "
            "beyond uniform attention and its positions"
        )
    if rows[0]["beyond_chance"] is None:
        head = f"{rows[0]['layer']}.{rows[0]['head']}"
        more = f"{rows[0]['turn']:.0%}"
        return (
            f"The largest shift to the model's own output (head {head}: {more} of its weight, from the first third of "
            f"the new tokens to the last, beyond its positions) is not tested: a test needs {FEW} texts whose outputs "
            "end differently"
        )
    turning = sum(row["beyond_chance"] is True for row in rows)
    first = next((row for row in rows if row["beyond_chance"]), rows[0])
    head, more = f"{first['layer']}.{first['head']}", f"{first['turn']:+.2f}"
    if not turning:
        return (
            "No head significantly shifts its weight to the model's own output; the largest shift is head "
            f"{head}, {more} of its weight, not significant"
        )
    if turning == 1:
        return (
            f"Of {len(rows)} heads, only {head} shifts to the model's own output significantly: {more} of its weight "
            "from the first third of the new tokens to the last, beyond uniform attention and its positions"
        )
    return (
        f"{turning} of {len(rows)} heads shift to the model's own output significantly, most of all {head}: {more} of "
        "its weight from the first third of the new tokens to the last, beyond uniform attention and its positions"
    )


def _thirds(results: xr.Dataset, name: str, texts: np.ndarray) -> np.ndarray:
    """Means over the first and the last third of each text's new tokens, ``(text, 2, layer, head)``."""
    values = results[name].sel(span="own output")
    values = values.expand_dims(head=[0]) if "head" not in values.dims else values
    values = values.transpose("sequence", "step", "layer", "head").values
    means = np.full((len(texts), 2, *values.shape[2:]), np.nan)
    for row, text in enumerate(texts):
        length = int(results.length.values[text])
        third = length // 3
        means[row] = values[text, :third].mean(0), values[text, length - third : length].mean(0)
    return means
