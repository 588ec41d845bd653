"""Writing the page of generated texts: each new token can be chosen, and every head's attention is drawn over them."""

from __future__ import annotations

import base64
from pathlib import Path
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
from attnscope.results.page.parts import MOST_ROWS, STYLES, numbers, script_json, write_page
from attnscope.results.page.scan import parsed
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    import xarray as xr

_MOST = 9_000_000  # bytes of weights on a page
_LEVELS = 250  # a share as a byte; 255 is none
_NONE = 255


@reads("generate")
def write_generation_report(results: xr.Dataset, path: Path | str) -> Path:
    """Write what `attnscope.generate` returned as one HTML page that needs no network and no other file."""
    rows, uses = own_output_shares(results), span_uses(results)
    size = int(np.prod([results.sizes[name] for name in ("step", "layer", "head", "span")])) * 3
    shown = max(1, min(results.sizes["sequence"], _MOST // size))
    return write_page(
        Path(path),
        "generation.html.j2",
        styles=(*STYLES, "generation.css"),
        scripts=("draw.js", "sort.js", "generation.js"),
        signature=parsed(results.attrs.get("signature", "{}")),
        model=str(results.attrs.get("model", "the model")),
        said=f"{describe_own_output(rows)}.",
        notes=list(notes_of(results).values()),
        full_pass=str(results.attrs.get("full_pass", "")),
        caution=CAUTION,
        turns=[_turn(row) for row in rows[:MOST_ROWS]],
        turn_count=len(rows),
        intervals=any(np.isfinite(row.low) for row in rows),
        spans=[_span(use) for use in uses],
        dashes=explain_dashes(uses),
        shown=shown,
        texts=results.sizes["sequence"],
        data=script_json(_data(results.isel(sequence=slice(shown)), rows)),
    )


def _data(results: xr.Dataset, rows: list[OwnOutputShare]) -> dict[str, Any]:
    first = rows[0] if rows else None
    heads = [
        [int(layer), int(head)]
        for i, layer in enumerate(results.layer.values)
        for j, head in enumerate(results["head"].values)
        if bool(results.entropy.isel(layer=i, head=j).notnull().any())
    ]
    return {
        "spans": [str(span) for span in results.span.values],
        "layers": [int(layer) for layer in results.layer.values],
        "kinds": [str(kind) for kind in results.layer_kind.values],
        "heads": heads,
        "columns": results.sizes["head"],
        "levels": _LEVELS,
        "first": heads[0] if first is None else [first.layer, first.head],
        "texts": [_text(results.isel(sequence=number)) for number in range(results.sizes["sequence"])],
    }


def _text(text: xr.Dataset) -> dict[str, Any]:
    """Tokens of one text, and its weights as bytes: ``(step, layer, head, span)``, of equal weights without heads."""
    steps = int(text.length)
    own = text.isel(step=slice(steps))
    order = ("step", "layer", "head", "span")
    tokens = [str(token) for token in text["text_token" if "text_token" in text else "text_token_id"].values]
    given = int(text.prompt_length)
    packed: dict[str, Any] = {
        "name": str(text.source.item()) if "source" in text.coords else f"prompt {int(text.prompt)}",
        "given": given,
        "steps": steps,
        "tokens": tokens[: given + steps],
        "weight": _bytes(own.span_weight.transpose(*order).values),
        "places": _bytes(own.place_span_weight.transpose(*order).values),
        "equal": _bytes(own.equal_span_weight.transpose("step", "layer", "span").values),
        "top": numbers(own.top_key.transpose("step", "layer", "head").values),
        "largest": _bytes(own.max_weight.transpose("step", "layer", "head").values),
        "entropy": numbers(own.entropy.transpose("step", "layer", "head").values.round(3)),
    }
    if "source_token" in text:
        packed["source"] = [str(token) for token in text.source_token.values if token]
    return packed


def _bytes(shares: np.ndarray) -> str:
    known = np.isfinite(shares)
    levels = np.where(known, np.round(np.where(known, shares, 0.0).clip(0.0, 1.0) * _LEVELS), _NONE)
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode("ascii")


def _turn(row: OwnOutputShare) -> dict[str, Any]:
    known = np.isfinite(row.low)
    return {
        "head": f"{row.layer}.{row.head}",
        "order": row.layer * 10_000 + row.head,
        "pairs": [(f"{first:.2f} → {last:.2f}", last) for first, last in (row.own, row.equal, row.places)],
        "turn": f"{row.turn:+.3f}".replace("-", "−"),
        "value": row.turn,
        "interval": f"{row.low:+.2f} to {row.high:+.2f}".replace("-", "−") if known else "",
        "told": {True: "yes", False: "not shown", None: "not known"}[row.beyond_chance],
    }


def _span(use: SpanUse) -> dict[str, Any]:
    def shown(value: float) -> str:
        return f"{value:.3f}" if np.isfinite(value) else "–"

    return {
        "name": use.span,
        "means": [shown(value) for value in (use.weight, use.equal, use.places)],
        "head": use.named,
        "most": [shown(value) for value in (use.most, use.most_equal, use.most_places)],
    }
