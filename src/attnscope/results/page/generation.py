"""The page of generated texts: each new token can be chosen, and every head's attention is drawn over them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.comparison.spans import (
    CAUTION,
    OwnOutputShare,
    SpanUse,
    describe_own_output,
    explain_dashes,
    own_output_shares,
    span_uses,
)
from attnscope.measure.stored import notes_of
from attnscope.results.page.parts import MOST_ROWS, cells, minus, numbers, script_json, write_page
from attnscope.results.render import Cell, Column
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

_MOST = 9_000_000  # bytes of weights on a page
_LEVELS = 250  # a share as a byte; 255 is none
_NONE = 255
_SPANS = ("All heads", "Equal", "Places", "Most above", "Weight", "Equal", "Places")


@reads("generate")
def write_generation_report(results: xr.Dataset, path: Path | str) -> Path:
    """Write what `attnscope.generate` returned as one HTML page that needs no network and no other file."""
    rows, uses = own_output_shares(results), span_uses(results)
    size = int(np.prod([results.sizes[name] for name in ("step", "layer", "head", "span")])) * 3
    shown = max(1, min(results.sizes["sequence"], _MOST // size))
    intervals = any(np.isfinite(row.low) for row in rows)
    headings = ["Own output", "Equal", "Places", "Turn", *(["95%"] if intervals else []), "Beyond chance"]
    return write_page(
        path,
        "generation",
        scripts=("draw.js", "sort.js", "generation.js"),
        data={"data": script_json(_data(results.isel(sequence=slice(shown)), rows))},
        signature=results.attrs.get("signature", "{}"),
        model=str(results.attrs.get("model", "the model")),
        finding=f"{describe_own_output(rows)}.",
        notes=list(notes_of(results).values()),
        full_pass=str(results.attrs.get("full_pass", "")),
        caution=CAUTION,
        turn_columns=[Column("Head", "ascending"), *(Column(heading, "descending") for heading in headings)],
        turns=[_turn(row, intervals=intervals) for row in rows[:MOST_ROWS]],
        turn_count=len(rows),
        span_columns=[Column("Span", kind="left"), *map(Column, _SPANS)],
        spans=[_span(use) for use in uses],
        dashes=explain_dashes(uses),
        shown=shown,
        texts=results.sizes["sequence"],
    )


def _data(results: xr.Dataset, rows: list[OwnOutputShare]) -> dict[str, Any]:
    first = rows[0] if rows else None
    known = results.entropy.notnull().any(("sequence", "step")).transpose("layer", "head").values
    layers, columns = results.layer.values, results["head"].values
    heads = [[int(layers[i]), int(columns[j])] for i, j in np.argwhere(known)]
    return {
        "spans": [str(span) for span in results.span.values],
        "layers": layers.tolist(),
        "kinds": [str(kind) for kind in results.layer_kind.values],
        "heads": heads,
        "columns": len(columns),
        "levels": _LEVELS,
        "first": heads[0] if first is None else [first.layer, first.head],
        "texts": [_text(results.isel(sequence=number)) for number in range(results.sizes["sequence"])],
    }


def _text(text: xr.Dataset) -> dict[str, Any]:
    """Tokens of one text, and its weights as bytes: ``(step, layer, head, span)``, of equal weights without heads."""
    steps, given = int(text.length), int(text.prompt_length)
    by_head = text.isel(step=slice(steps)).transpose("step", "layer", "head", "span", ...)
    tokens = [str(token) for token in text["text_token" if "text_token" in text else "text_token_id"].values]
    packed: dict[str, Any] = {
        "name": str(text.source.item()) if "source" in text.coords else f"prompt {int(text.prompt)}",
        "given": given,
        "steps": steps,
        "tokens": tokens[: given + steps],
        "weight": _bytes(by_head.span_weight.values),
        "places": _bytes(by_head.place_span_weight.values),
        "equal": _bytes(by_head.equal_span_weight.values),
        "top": numbers(by_head.top_key.values),
        "largest": _bytes(by_head.max_weight.values),
        "entropy": numbers(by_head.entropy.values.round(3)),
    }
    if "source_token" in text:
        packed["source"] = [str(token) for token in text.source_token.values if token]
    return packed


def _bytes(shares: np.ndarray) -> str:
    known = np.isfinite(shares)
    levels = np.where(known, np.round(np.where(known, shares, 0.0).clip(0.0, 1.0) * _LEVELS), _NONE)
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode("ascii")


def _turn(row: OwnOutputShare, *, intervals: bool) -> list[Cell]:
    interval = minus(f"{row.low:+.2f} to {row.high:+.2f}") if np.isfinite(row.low) else ""
    return [
        Cell(f"{row.layer}.{row.head}", row.layer * 10_000 + row.head),
        *(Cell(f"{first:.2f} → {last:.2f}", last) for first, last in (row.own, row.equal, row.places)),
        Cell(minus(f"{row.turn:+.3f}"), row.turn),
        *([Cell(interval, row.turn)] if intervals else []),
        *cells({True: "yes", False: "not shown", None: "not known"}[row.beyond_chance]),
    ]


def _span(use: SpanUse) -> list[Cell]:
    def shown(*values: float) -> list[str]:
        return [f"{value:.3f}" if np.isfinite(value) else "–" for value in values]

    means, most = shown(use.weight, use.equal, use.places), shown(use.most, use.most_equal, use.most_places)
    return cells(use.span, *means, use.named, *most)
