"""One look for all figures, whatever the user's own matplotlib settings are.

A figure is laid out for its letters, and the same result is to give the same file on every machine: so the settings of
matplotlib (``matplotlibrc``, ``plt.style.use``) are left aside, and `restyled` says what is to be otherwise.
"""

from __future__ import annotations

import unicodedata
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import regex
from matplotlib import style

from attnscope.figures.text import BASE_FONT, font_families

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HANDLE, _LETTER = 0.5, 0.065  # inches that a legend's mark and each letter take

_LOOK = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,  # ticks say their numbers, not what is to be added to them
    "figure.dpi": 100,
    "hatch.linewidth": 0.4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "font.sans-serif": [BASE_FONT],  # named last in an SVG, for readers who lack the fonts before it
    "svg.hashsalt": "attnscope",
}


_ASKED: ContextVar[dict[str, Any] | None] = ContextVar("asked", default=None)


@contextmanager
def restyled(settings: dict[str, Any]) -> Generator[None]:
    """A context in which figures are drawn and saved with some settings of matplotlib instead of ours.

    Figures do not follow the user's own style otherwise. What a function returns is a plain `Figure`: its titles, axes
    and lines can also be changed one by one.

    Parameters
    ----------
    settings
        As in ``matplotlib.rcParams``: ``{"font.family": "serif", "font.size": 9}``.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures import (restyled)
    >>> from attnscope.figures.scan import overview
    >>> result = xr.Dataset({"entropy": (("text", "layer", "head"), np.ones((1, 2, 2)))})
    >>> with restyled({"axes.titlesize": 12}):
    ...     figure = overview(result, "entropy")
    >>> figure.axes[0].title.get_fontsize(), overview(result, "entropy").axes[0].title.get_fontsize()
    (12.0, 8.0)
    """
    token = _ASKED.set({**(_ASKED.get() or {}), **settings})
    try:
        yield
    finally:
        _ASKED.reset(token)


def figure_style() -> AbstractContextManager[None]:
    """A context in which every figure is drawn and saved alike."""
    return style.context(
        ["default", {**_LOOK, "font.family": [*font_families(), "sans-serif"], **(_ASKED.get() or {})}]
    )


def name_heads(axes: Axes, layers: list[str], heads: list[int]) -> None:
    """Label a grid of layers (rows, the first on top) by heads (columns); thin the labels where tight."""
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), layers)
    axes.set(xlabel="Head", ylabel="Layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def name_columns(axes: Axes, at: Sequence[int], names: Sequence[str]) -> None:
    """Name columns by tokens, turned by 90 degrees; the letters of Chinese, Japanese and Korean below each other."""
    upright = [any(unicodedata.east_asian_width(letter) in "WF" for letter in name) for name in names]
    shown = [
        "\n".join(regex.findall(r"\X", name)) if up else name for name, up in zip(names, upright, strict=True)
    ]
    axes.set_xticks(at, shown, rotation=90, parse_math=False)
    for tick, up in zip(axes.xaxis.get_major_ticks(), upright, strict=True):
        if up:
            tick.label1.set(rotation=0, linespacing=1.0)
            tick.label2.set(rotation=0, linespacing=1.0)


def one_scale(panels: Iterable[Axes]) -> None:
    """Give panels one y axis, so that their heights compare; only those at the left edge say its numbers."""
    panels = list(panels)
    ends = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        place = axes.get_subplotspec()
        axes.tick_params(labelleft=place is None or place.is_first_col())


def looked_at(offsets: np.ndarray, values: np.ndarray) -> tuple[int, int]:
    """First and last offset to draw: the right side is left out where nothing ever lies on it, as in causal heads.

    Parameters
    ----------
    offsets
        ``(offset)``.
    values
        ``(..., offset)``.

    Examples
    --------
    >>> offsets = np.arange(-2, 3)
    >>> looked_at(offsets, np.array([0.1, 0.5, 0.4, 0, 0])), looked_at(offsets, np.ones(5))
    ((-2, 0), (-2, 2))
    """
    right = bool(np.nan_to_num(values[..., offsets > 0]).any())
    return int(offsets[0]), int(offsets[-1]) if right else max(0, int(offsets[0]) + 1)


def legend_columns(figure: Figure, names: Iterable[str], most: int = 4) -> int:
    """How many of a legend's entries stand side by side in the figure: none of its layouts widens it for them."""
    longest = max(map(len, names))
    return min(most, max(1, int(figure.get_figwidth() / (_HANDLE + _LETTER * longest))))
