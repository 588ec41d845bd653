"""The page of generated texts: each new token can be chosen, and every head's attention is drawn over them."""

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnscope.report.language import translate
from attnscope.report.render import page_table
from attnscope.report.schema import Report
from attnscope.results.page.heads import Tab, numbers_tab, of_report
from attnscope.results.page.parts import base64_of, numbers, write_page
from attnscope.support.errors import AttnscopeError

_MOST = 9_000_000  # bytes of weights on a page
_LEVELS = 250  # a share as a byte; 255 is none
_NONE = 255


def write(report: Report, path: Path | str, run: Path | None = None) -> Path:
    """Write the page of generated texts."""
    results: Any = report.result
    size = int(np.prod([results.sizes[name] for name in ("step", "layer", "head", "span")])) * 3 + _map_bytes(results)
    texts = max(1, min(results.sizes["sequence"], _MOST // size))  # as many as there is room for
    kinds = dict(zip(results.layer.values.tolist(), map(str, results.layer_kind.values), strict=True))
    heads = of_report(report, {(layer, head): kinds[layer] for layer, head in _order(results)})
    if heads is None:
        raise AttnscopeError("the result of generate has no heads to show")
    turn = next((one["key"] for one in heads["quantities"] if one["key"].endswith(".turn")), None)
    for one in heads["quantities"]:
        if one["key"] == turn:
            one |= {"signed": True, "away": translate("away from the own output: not tested")}  # the test has one side
    heads["opens"] |= {"labels": turn is None, "quantity": turn}  # else the curves
    turning, spans, _texts = map(page_table, report.tables)
    return write_page(
        path,
        "generation",
        report,
        heads=heads | {"generated": _data(results.isel(sequence=slice(texts)))},
        tabs=[Tab("text", "Text", "text_panel"), numbers_tab("generate")],
        scripts=("generation.js",),
        run=run,
        tables=[turning | {"name": "turning"}, spans],
        shown=texts,
        texts=results.sizes["sequence"],
    )


def _attending(results: xr.Dataset) -> np.ndarray:
    """Which heads attend at any step, ``(layer, head)``."""
    return results.entropy.notnull().any(("sequence", "step")).transpose("layer", "head").values


def _order(results: xr.Dataset) -> list[tuple[int, int]]:
    """Layer and head in the order of the page's bytes."""
    return [(int(results.layer[i]), int(results["head"][j])) for i, j in np.argwhere(_attending(results))]


def _data(results: xr.Dataset) -> dict[str, Any]:
    heads = _attending(results)
    return {
        "spans": [translate(str(span)) for span in results.span.values],
        "order": _order(results),
        "levels": _LEVELS,
        "texts": [_text(results.isel(sequence=number), heads) for number in range(results.sizes["sequence"])],
    }


def _text(text: xr.Dataset, heads: np.ndarray) -> dict[str, Any]:
    """Tokens of one text, and the weights of these heads as bytes ``(step, head, span)``."""
    steps, prompt = int(text.length), int(text.prompt_length)

    def of_heads(name: str) -> np.ndarray:
        whole = text[name].broadcast_like(text.top_key)  # uniform attention has no heads
        return whole.transpose("step", "layer", "head", ...).values[:steps, heads]

    tokens = [str(token) for token in text["text_token" if "text_token" in text else "text_token_id"].values]
    source = {"source": [str(token) for token in text.source_token.values if token]} if "source_token" in text else {}
    return (
        source
        | _pictures(text, steps, heads)
        | {
            "name": translate(str(text.source.item()) if "source" in text.coords else f"prompt {int(text.prompt)}"),
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
    )


def _map_bytes(results: xr.Dataset) -> int:
    """Bytes of the maps over the images of a text: of all heads, of layers, and of each head if they fit."""
    if "patch_weight" not in results or "view_name" not in results:
        return 0
    steps, layers, heads, patches = (results.sizes[name] for name in ("step", "layer", "head", "patch"))
    together = steps * patches * (1 + layers)
    each = steps * patches * layers * heads
    return together + (each if each <= _MOST else 0)


def _pictures(text: xr.Dataset, steps: int, heads: np.ndarray) -> dict[str, Any]:
    """The images of a text, and the weights on their patches as bytes ``(step, ..., patch)``."""
    count = int((text.patch_position >= 0).sum()) if _map_bytes(text.expand_dims("sequence")) else 0
    if not count:
        return {}
    weights = text.patch_weight.transpose("step", "layer", "head", "patch").values[:steps, ..., :count]
    every = weights[:, heads]
    maps = {"layers": _roots(np.nanmean(weights, axis=2)), "all": _roots(every.mean(1))}
    if every.size <= _MOST:
        maps["heads"] = _roots(every)
    columns = ("view_name", "view_rows", "view_columns", "view_picture")
    views: list[dict[str, Any]] = []
    first = 0
    for name, rows, across, picture in zip(*(text[column].values.tolist() for column in columns), strict=True):
        if rows:
            source = f"data:image/jpeg;base64,{picture}" if picture else ""
            views.append({"name": name, "rows": rows, "columns": across, "source": source, "first": first})
            first += rows * across
    return {"views": views, "maps": maps, "patches": text.patch_position.values[:count].tolist()}


def _roots(shares: np.ndarray) -> str:
    """Square roots of shares as bytes: small weights on many patches differ."""
    return _bytes(np.sqrt(shares.clip(0.0, 1.0)))


def _bytes(shares: np.ndarray) -> str:
    levels = np.nan_to_num(np.round(shares.clip(0.0, 1.0) * _LEVELS), nan=_NONE)
    return base64_of(levels.astype(np.uint8))
