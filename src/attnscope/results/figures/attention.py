"""The attention of one head over one text, for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import PowerNorm

from attnscope.results.figures import style
from attnscope.results.figures.panels import colour_bar, heat, largest
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError

_LETTERS = 0.105  # inches a token, below which names would touch
_LONGEST = 12  # letters of a token's name


@checked
@style.figure_style()
def attention(
    weights: xr.DataArray | np.ndarray,
    path: str | Path | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    tokens: Sequence[str] | None = None,
    query_tokens: Sequence[str] | None = None,
    width: float = style.COLUMN,
    title: str | None = None,
) -> style.Figure:
    """Draw one head's weights: rows are queries, columns are keys, darker is more, by the square root.

    Parameters
    ----------
    weights
        What `attnscope.weights` returns, or a matrix ``(query, key)``.
    path
        File to write, by its ending ``.svg``, ``.pdf`` or ``.png``.
    layer, head
        The head, counted from 0, where `weights` has several.
    tokens, query_tokens
        Names of the keys and of the queries, for a matrix; by default the queries are the keys.
    width
        Width in inches: 3.25 for one column of a paper, 6.75 for two. Letters have 7 and 8 points.
    title
        Title. By default the layer and the head.

    Raises
    ------
    AttnscopeError
        If the head is not there, or names and weights differ in number.

    Notes
    -----
    All tokens are drawn. Where their names do not fit, positions are numbered instead.

    Examples
    --------
    >>> import attnscope
    >>> weights = attnscope.weights("bundled", "The tide comes in twice a day.")
    >>> figure = attnscope.figures.attention(weights, layer=0, head=3)
    >>> figure.axes[0].get_title()
    'Layer 0, head 3'
    """
    matrix, names, where = chosen_matrix(weights, layer, head, tokens, query_tokens)
    figure = style.Figure(figsize=(width, width * 0.86), layout="constrained")
    figure.set_figwidth(width)  # the width that was asked for, not that of a column or a page
    axes = figure.subplots()
    image = heat(axes, matrix, norm=PowerNorm(0.5, 0.0, largest(matrix)))
    if (width * 0.62 / max(len(side) for side in names)) >= _LETTERS:
        queries, keys = ([style.drawable(token, longest=_LONGEST) for token in side] for side in names)
        style.name_columns(axes, range(len(keys)), keys)
        axes.set_yticks(range(len(queries)), queries, parse_math=False)
        axes.set(xlabel="Key", ylabel="Query")
    else:
        axes.set(xlabel=f"Key, position of {len(names[1]):,}", ylabel=f"Query, position of {len(names[0]):,}")
    axes.set_title(where if title is None else title, parse_math=False)
    axes.spines[:].set(visible=True, color="0.7")
    colour_bar(figure, image, axes, "Weight", aspect=25)
    if path is not None:
        style.save_as(figure, path)
    return figure


def named_sides(
    shapes: Sequence[tuple[int, ...]], tokens: Sequence[str] | None, query_tokens: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Names of queries and keys of matrices of one shape, by default numbers; queries are keys where they can be."""
    rows, columns = shapes[0]
    keys = [*map(str, range(columns) if tokens is None else tokens)]
    numbers = keys if rows == columns else range(rows)
    queries = [*map(str, numbers if query_tokens is None else query_tokens)]
    if any(shape != (len(queries), len(keys)) for shape in shapes):
        raise AttnscopeError(
            f"found {len(queries)} query tokens and {len(keys)} key tokens for weights of {rows} x {columns}"
        )
    return queries, keys


def chosen_matrix(
    weights: xr.DataArray | np.ndarray,
    layer: int | None,
    head: int | None,
    tokens: Sequence[str] | None,
    query_tokens: Sequence[str] | None,
) -> tuple[np.ndarray, tuple[list[str], list[str]], str]:
    """The matrix of one head, the names of its queries and keys, and where it is from."""
    if isinstance(weights, np.ndarray):
        chosen: Any = weights
        if chosen.ndim != 2:  # noqa: PLR2004
            raise AttnscopeError(f"weights has {chosen.ndim} dimensions; expected a matrix (query, key)")
        return chosen, named_sides([chosen.shape], tokens, query_tokens), ""
    chosen, named = weights, []
    for dim, number in {"layer": layer, "head": head}.items():
        if dim in chosen.dims:
            numbers = chosen[dim].values.tolist()
            if number not in numbers:
                raise AttnscopeError(f"{dim} is {number}; expected one of {numbers[0]} to {numbers[-1]}")
            chosen = chosen.sel({dim: number})
        named += [f"{dim} {int(chosen[dim])}"] if dim in chosen.coords else []
    names = [*map(str, chosen.query_token.values)], [*map(str, chosen.key_token.values)]
    return chosen.transpose("query", "key").values, names, ", ".join(named).capitalize()
