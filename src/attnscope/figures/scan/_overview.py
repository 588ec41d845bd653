"""One number per head, as a grid of layers and heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from attnscope.figures.palette import LEFT, RIGHT
from attnscope.figures.reading import (
    axis_values,
    check_statistic,
    layer_labels,
    mean_over_texts,
    noun_of,
    wording,
)
from attnscope.figures.style import figure_style, name_heads

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.image import AxesImage

    from attnscope.statistics import Wording

_LEFT, _RIGHT, _BOTTOM, _TOP = 0.7, 1.05, 0.5, 0.4  # inches
_DARK = 0.55  # luminance below which a number is written in white
_MOST_NUMBERS = 64  # a grid of at most this many heads also shows the numbers


def overview(result: xr.Dataset, statistic: str) -> Figure:
    """Draw a statistic of every head, the mean over texts, as a grid of layers and heads.

    A signed statistic (``mean_offset``, ``direction``, or one with the attribute ``signed``) has colours that diverge
    from 0: blue is left or less, orange is right or more. The colours of a share go to 1, so that faint differences
    look faint; those of other statistics go from the lowest head to the highest. A head without a value is hatched.

    Parameters
    ----------
    result
        The result of a scan.
    statistic
        A variable with dimensions (text, layer, head) or (layer, head).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result has no such statistic; the message names those it has.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.scan import overview
    >>> entropy = np.random.default_rng(0).gamma(4.0, 0.5, size=(10, 3, 4))  # (text, layer, head), nats
    >>> result = xr.Dataset({"entropy": (("text", "layer", "head"), entropy)})
    >>> overview(result, "entropy").axes[0].get_title(loc="left")
    'Entropy of a row (nats), mean over 10 windows'
    >>> overview(result, "sharpness")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: Unknown statistic 'sharpness'. This result has: entropy.
    """
    check_statistic(result, statistic)
    words = wording(result, statistic)
    values = mean_over_texts(result[statistic])  # (layer, head)
    layers, heads = values.shape
    cell = float(np.clip(5.0 / max(layers, heads), 0.28, 0.6))  # inches
    grid_width, grid_height = heads * cell, layers * cell
    title = f"{words.long_name} ({words.units})" if words.units else words.long_name
    if "text" in result[statistic].dims:
        count = result.sizes["text"]
        title += f", mean over {count} {noun_of(result)}{'s' * (count != 1)}"
    width = max(_LEFT + grid_width + _RIGHT, _LEFT + 0.068 * len(title))  # the title fits in
    height = _TOP + grid_height + _BOTTOM

    with figure_style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((_LEFT / width, _BOTTOM / height, grid_width / width, grid_height / height))
        axes.set_facecolor("0.96")
        image = axes.imshow(
            values,
            cmap=_colours(words.signed),
            norm=_scale(values, words),
            aspect="auto",
        )
        for layer, head in np.argwhere(np.isnan(values)):
            axes.fill_between(
                [head - 0.5, head + 0.5], layer - 0.5, layer + 0.5, hatch="////", fc="0.96", ec="0.75"
            )
        name_heads(axes, layer_labels(result), axis_values(result, "head"))
        axes.set_xticks(np.arange(heads - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(layers - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
        if values.size <= _MOST_NUMBERS:
            _write_numbers(image, values)
        axes.set_title(title, loc="left", parse_math=False)
        bar_axes = figure.add_axes(
            ((_LEFT + grid_width + 0.15) / width, _BOTTOM / height, 0.13 / width, grid_height / height)
        )
        bar = figure.colorbar(image, cax=bar_axes)
        bar.outline.set_visible(False)
        bar.set_label(words.units or words.long_name)
    return figure


def _colours(signed: bool) -> Colormap | str:
    return LinearSegmentedColormap.from_list("left_right", [LEFT, "#F7F7F7", RIGHT]) if signed else "viridis"


def _scale(values: np.ndarray, words: Wording) -> Normalize:
    """From the lowest value to the highest, and as far at least as the statistic can go."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return Normalize(-1.0 if words.signed else 0.0, 1.0)
    if words.signed:
        reach = max(float(np.abs(finite).max()), words.largest) or 1.0
        return Normalize(-reach, reach)
    low, high = float(finite.min()), float(finite.max())
    if words.largest:
        low, high = min(low, 0.0), max(high, words.largest)
    return Normalize(low, high) if high > low else Normalize(low - 0.5, high + 0.5)


def _short(value: float) -> str:
    """Two digits that matter, and never an exponent: a cell is small.

    Examples
    --------
    >>> _short(-140.2), _short(-1.44), _short(0.0625), _short(1e-6)
    ('−140', '−1.4', '0.062', '0')
    """
    text = f"{value:.0f}" if abs(value) >= 100 else f"{float(f'{value:.2g}'):.3f}".rstrip("0").rstrip(".")  # noqa: PLR2004
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def _write_numbers(image: AxesImage, values: np.ndarray) -> None:
    for (layer, head), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < _DARK
            image.axes.text(
                head,
                layer,
                _short(value),
                ha="center",
                va="center",
                fontsize=6,
                color="white" if dark else "black",
            )
