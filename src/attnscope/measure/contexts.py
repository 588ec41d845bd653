"""Examples of heads in a scan: the windows where each attends most strongly, in context."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.measure.quantities import STRONGEST
from attnscope.measure.sample import leading_heads
from attnscope.read.words import in_words

if TYPE_CHECKING:
    from attnscope.read.windows import Window

CONTEXT = 16  # tokens shown before and after a marked one
_EACH = 5  # examples of a head
_HEADS = 400  # that have examples; of more heads those that lead


def strongest_examples(results: xr.Dataset, windows_at: Callable[[set[int]], Mapping[int, Window]]) -> xr.Dataset:
    """The examples of every head, or of the heads that lead, strongest first; each window has at most one of a head."""
    strongest = results[STRONGEST].transpose("layer", "head", "window", "part").values
    heads = [*np.ndindex(strongest.shape[:2])]
    if len(heads) > _HEADS:
        heads = leading_heads(results)
    kinds = results["layer_kind"].values.tolist()
    rows: list[dict[str, Any]] = []
    for layer, head in heads:
        weight = strongest[layer, head, :, 0]
        for at in np.argsort(-weight, kind="stable")[: min(_EACH, np.isfinite(weight).sum())].tolist():
            query, key = map(int, strongest[layer, head, at, 1:])
            named = {"layer": layer, "head": head, "weight": float(weight[at]), "query": query, "key": key}
            rows.append(named | {"window": int(results["window"].values[at])})
    windows = {number: in_words(window) for number, window in windows_at({row["window"] for row in rows}).items()}
    for row in rows:
        window = windows[row["window"]]
        sides = sides_of(window, kinds[row["layer"]])
        row["text"] = str(window.source)
        row["context"] = json.dumps(context(*sides, row["query"], row["key"]), ensure_ascii=False)
    names = ("layer", "head", "weight", "query", "key", "window", "text", "context")
    texts = {"text", "context"}
    return xr.Dataset(
        {name: ("example", np.array([row[name] for row in rows], object if name in texts else None)) for name in names}
    )


def examples_by_head(examples: xr.Dataset | None) -> dict[str, list[dict[str, Any]]]:
    """The examples of each head for a page, by its name ``layer.head``, strongest first; empty without any."""
    by_head: dict[str, list[dict[str, Any]]] = {}
    if examples is None:
        return by_head
    for at in range(examples.sizes["example"]):
        row: dict[str, Any] = {str(name): values.values[at] for name, values in examples.items()}
        numbers = {name: int(row[name]) for name in ("query", "key", "window")}
        by_head.setdefault(f"{row['layer']}.{row['head']}", []).append(
            {"pieces": json.loads(row["context"]), "weight": float(row["weight"]), "text": row["text"]}
            | numbers
            | {"offset": numbers["key"] - numbers["query"]}
        )
    return by_head


def sides_of(window: Window, kind: str) -> tuple[Window, Window]:
    """The windows of the queries and of the keys of a layer."""
    target = window.target or window
    return (window if kind == "self" else target), (target if kind == "causal" else window)


def context(queries: Window, keys: Window, query: int, key: int) -> list[tuple[str, str]]:
    """Pieces of text around both tokens, each with the mark ``query``, ``key`` or none."""
    if queries is not keys:
        pieces = [*_around(queries.tokens, {query: "query"}), (" ← ", ""), *_around(keys.tokens, {key: "key"})]
    else:
        pieces = [*_around(queries.tokens, {key: "key", query: "query"})]
    return [(text, mark) for text, mark in pieces if text]


def _around(tokens: Sequence[str], marks: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The tokens near the marked ones, with an ellipsis where some are left out."""
    last = -1
    for at in sorted(marks):
        begin, start = max(last + 1, at - CONTEXT), last + 1
        text = "".join(tokens[begin:at])
        if begin > start + CONTEXT and start:
            text = f"{''.join(tokens[start : start + CONTEXT])} … {text}"
        elif begin > start:
            text = f"{''.join(tokens[start:begin]) if start else '… '}{text}"
        token = tokens[at]
        bare = token.strip() or token
        before, _, after = token.partition(bare or " ")  # spaces are outside of the mark; a token can be empty
        yield from ((_on_a_line(text + before), ""), (bare, marks[at]), (_on_a_line(after), ""))
        last = at
    end = last + 1 + CONTEXT
    yield _on_a_line("".join(tokens[last + 1 : end]) + (" …" if end < len(tokens) else "")), ""


def _on_a_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
