"""What the figures of `explain` share: colours, panels for heads, curves with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from attnscope.errors import AttnscopeError
from attnscope.figures.reading import axis_values, check_heads, require

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

INK, NOISE, NOISE_BAND = "0.15", "0.45", "0.91"
MEASURED, ALONE = "#0072B2", "#D55E00"  # what the model does, what is left of it
QUERY, KEY = "#009E73", "#CC79A7"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
OFFSET = "Offset (key − query), tokens: negative is left"
_MOST_COLUMNS = 4
_WIDE = 6.0  # inches


def the_heads(
    result: xr.Dataset, heads: Sequence[tuple[int, int]], needs: Sequence[str], *, purpose: str
) -> list[tuple[int, int]]:
    """The heads, if the result has them and what is to be drawn of them."""
    require(result, needs, purpose=purpose)
    return check_heads(result, heads)


def head_panels(
    count: int, heights: tuple[float, ...], *, width: float = 2.3
) -> tuple[Figure, list[list[Axes]]]:
    """One column of panels for each head, four heads beside each other; heights in inches."""
    columns = min(count, _MOST_COLUMNS)
    blocks = math.ceil(count / columns)
    size = (max(4.4, width * columns), blocks * sum(heights) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(blocks * len(heights), columns, height_ratios=heights * blocks)
    return figure, [
        [
            figure.add_subplot(grid[index // columns * len(heights) + row, index % columns])
            for row in range(len(heights))
        ]
        for index in range(count)
    ]


def is_leftmost(index: int) -> bool:
    """Whether the panels of the head with this number stand at the left edge."""
    return index % _MOST_COLUMNS == 0


def one_head(result: xr.Dataset, layer: int, head: int) -> xr.Dataset:
    """The part of a result that belongs to a head."""
    row, column = axis_values(result, "layer").index(layer), axis_values(result, "head").index(head)
    return result.isel(layer=row, head=column)


def place(result: xr.Dataset, dim: str, name: str) -> int:
    """Where a name stands along a dimension.

    Raises
    ------
    AttnscopeError
        If it is not there.
    """
    known = names(result, dim)
    if name not in known:
        raise AttnscopeError(f"The result has no {dim} {name!r}; it has {', '.join(known)}.")
    return known.index(name)


def names(result: xr.Dataset, dim: str) -> list[str]:
    """Names along a dimension."""
    return [str(name) for name in result[dim].values]


def curve(
    axes: Axes,
    x: np.ndarray,
    values: tuple[np.ndarray, np.ndarray, np.ndarray] | np.ndarray,
    colour: str,
    **line: Any,
) -> None:
    """A line, and the band between its ends where values are (mean, low, high).

    Parameters
    ----------
    axes
        Axes to draw on.
    x
        Places of the values.
    values
        Values, or mean, lower and upper end of each.
    colour
        Colour of the line and of the band.
    **line
        Style of the line, as Matplotlib's ``plot`` takes it.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attnscope.figures.explain import curve
    >>> axes, mean = Figure().add_subplot(), np.array([0.2, 0.5])
    >>> curve(axes, np.array([-1, 0]), (mean, mean - 0.1, mean + 0.1), "black")
    >>> curve(axes, np.array([-1, 0]), mean, "red", linestyle=":")
    >>> len(axes.lines), len(axes.collections)  # only the first has a band
    (2, 1)
    """
    if isinstance(values, tuple):
        mean, low, high = values
        axes.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0)
    else:
        mean = values
    style: dict[str, Any] = {"linewidth": 1.3} | line
    axes.plot(x, mean, color=colour, **style)


def with_interval(result: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A variable with the ends of its interval; the value itself where it has none."""
    ends = [result[name + end] if name + end in result else result[name] for end in ("", "_low", "_high")]
    mean, low, high = (np.asarray(end.values, dtype=float) for end in ends)
    return mean, low, high


def legend_above(figure: Figure, axes: Axes, columns: int) -> None:
    """The axes' legend above the figure, in so many columns where there is room.

    Parameters
    ----------
    figure
        Figure of the axes.
    axes
        Axes whose lines the legend names.
    columns
        Number of columns.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attnscope.figures.explain import legend_above
    >>> figure = Figure(layout="constrained")
    >>> axes = figure.add_subplot()
    >>> line = axes.plot([0, 1], label="measured")
    >>> legend_above(figure, axes, 1)
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['measured']
    """
    handles, labels = axes.get_legend_handles_labels()
    columns = columns if figure.get_figwidth() >= _WIDE else min(columns, 2)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=7)


def up_to_the_mask(part: xr.Dataset, name: str) -> xr.Dataset:
    """The part of a head up to offset 0 where no weight lies beyond, as under a causal mask; else all of it.

    Parameters
    ----------
    part
        What belongs to a head, over ``offset``.
    name
        Its profile of weights.

    Examples
    --------
    >>> import xarray as xr
    >>> part = xr.Dataset({"profile": ("offset", [0.3, 0.7, 0.0])}, coords={"offset": [-1, 0, 1]})
    >>> up_to_the_mask(part, "profile")["offset"].values.tolist()
    [-1, 0]
    """
    after = part["offset"].values > 0
    if bool((part[name].isel(offset=after) > 0).any()):
        return part
    return part.isel(offset=~after)


def zero_line(axes: Axes) -> None:
    """Mark offset 0, the token itself."""
    axes.axvline(0, color="0.5", linewidth=0.6, linestyle=":")


def tokens(value: float, digits: int = 2) -> str:
    """A signed number of tokens, as it is written in figures.

    Examples
    --------
    >>> tokens(-1.0), tokens(2.25), tokens(0.004)
    ('−1', '+2.25', '0')
    """
    if not math.isfinite(value):
        return "?"
    text = f"{value:+.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:+.0f}"
    return "0" if text in {"+0", "-0"} else text.replace("-", "−")
