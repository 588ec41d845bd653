"""One look for all figures, whatever the user's own matplotlib settings are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import style

from attnscope.figures.text import font_families

if TYPE_CHECKING:
    from collections.abc import Iterable
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
    "figure.dpi": 100,
    "hatch.linewidth": 0.4,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "attnscope",
}


def look() -> AbstractContextManager[None]:
    """A context in which every figure is drawn and saved alike."""
    return style.context(["default", {**_LOOK, "font.family": font_families()}])


def name_heads(axes: Axes, layers: list[str], heads: list[int]) -> None:
    """Label a grid of layers (rows, the first on top) by heads (columns); thin the labels where tight."""
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), layers)
    axes.set(xlabel="Head", ylabel="Layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def legend_columns(figure: Figure, names: Iterable[str], most: int = 4) -> int:
    """How many of a legend's entries stand side by side in the figure: none of its layouts widens it for them."""
    longest = max(map(len, names))
    return min(most, max(1, int(figure.get_figwidth() / (_HANDLE + _LETTER * longest))))
