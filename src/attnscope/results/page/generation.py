"""The page of generated texts: each new token can be chosen, and every head's attention is drawn over them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.results.page.parts import numbers, script_json, write_page
from attnscope.results.render import page_table

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from attnscope.results.schema import Report, Row

_MOST = 9_000_000  # bytes of weights on a page
_LEVELS = 250  # a share as a byte; 255 is none
_NONE = 255


def write(found: Report, path: Path | str) -> Path:
    """Write the page of a report."""
    results: Any = found.result
    size = int(np.prod([results.sizes[name] for name in ("step", "layer", "head", "span")])) * 3
    shown = max(1, min(results.sizes["sequence"], _MOST // size))
    heads, spans, _texts = map(page_table, found.tables)
    return write_page(
        path,
        "generation",
        scripts=("draw.js", "sort.js", "generation.js"),
        data={"data": script_json(_data(results.isel(sequence=slice(shown)), found.rows[0]))},
        signature=found.signature,
        model=found.model,
        report=found,
        tables=[heads | {"name": "turning"}, spans],
        shown=shown,
        texts=results.sizes["sequence"],
    )


def _data(results: xr.Dataset, first: Row) -> dict[str, Any]:
    known = results.entropy.notnull().any(("sequence", "step")).transpose("layer", "head").values
    heads = [[int(results.layer[i]), int(results["head"][j])] for i, j in np.argwhere(known)]
    return {
        "spans": [str(span) for span in results.span.values],
        "layers": results.layer.values.tolist(),
        "kinds": [str(kind) for kind in results.layer_kind.values],
        "heads": heads,
        "columns": results.sizes["head"],
        "levels": _LEVELS,
        "first": heads.index([first["layer"], first["head"]]),
        "texts": [_text(results.isel(sequence=number), known) for number in range(results.sizes["sequence"])],
    }


def _text(text: xr.Dataset, known: np.ndarray) -> dict[str, Any]:
    """Tokens of one text, and its weights as bytes ``(step, head, span)``."""
    steps, prompt = int(text.length), int(text.prompt_length)

    def of_heads(name: str) -> np.ndarray:
        whole = text[name].broadcast_like(text.top_key)  # uniform attention has no heads
        return whole.transpose("step", "layer", "head", ...).values[:steps, known]

    tokens = [str(token) for token in text["text_token" if "text_token" in text else "text_token_id"].values]
    source = {"source": [str(token) for token in text.source_token.values if token]} if "source_token" in text else {}
    return source | {
        "name": str(text.source.item()) if "source" in text.coords else f"prompt {int(text.prompt)}",
        "prompt": prompt,
        "steps": steps,
        "tokens": tokens[: prompt + steps],
        "weight": _bytes(of_heads("span_weight")),
        "positions": _bytes(of_heads("position_span_weight")),
        "equal": _bytes(of_heads("equal_span_weight")),
        "top": numbers(of_heads("top_key")),
        "largest": _bytes(of_heads("max_weight")),
        "entropy": numbers(of_heads("entropy").round(3)),
    }


def _bytes(shares: np.ndarray) -> str:
    levels = np.nan_to_num(np.round(shares.clip(0.0, 1.0) * _LEVELS), nan=_NONE)
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode("ascii")
