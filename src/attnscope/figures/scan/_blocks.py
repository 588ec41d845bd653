"""How much of the weight the best blocks hold, of every head by layer, beside equal weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from attnscope.figures.palette import LEFT, RIGHT
from attnscope.figures.reading import layer_labels, mean_over_texts, noun_of, require, wording
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

_INK, _FEW = "0.1", 6  # so many layers are named one by one


def block_shares(result: xr.Dataset, statistic: str = "block_recall") -> Figure:
    """Draw how much of the weight the best blocks hold: every head as a dot above its layer, a panel for each share.

    A bar is the median of a layer's heads. Dashed is what equal weights over all that may be seen would give, where the
    result has it. All panels have one scale.

    Parameters
    ----------
    result
        With ``block_recall`` or ``map_block_recall (text, layer, head, kept)``, and what equal weights give.
    statistic
        Which of the two.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result has no such statistic.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.scan import block_shares
    >>> held = np.random.default_rng(0).random((2, 4, 8, 3))
    >>> result = xr.Dataset(
    ...     {"block_recall": (("text", "layer", "head", "kept"), held)}, coords={"kept": [5, 10, 25]}
    ... )
    >>> [axes.get_title(loc="left") for axes in block_shares(result).axes]
    ['Best 5% of the blocks', 'Best 10% of the blocks', 'Best 25% of the blocks']
    """
    require(result, (statistic, "kept"), purpose="block_shares")
    own = mean_over_texts(result[statistic].transpose(..., "kept"))  # (layer, head, kept)
    even = _of_equal(result, f"equal_{statistic}")
    kept = result["kept"].values.tolist()
    count, noun = result.sizes.get("text", 1), noun_of(result)
    with figure_style():
        width = float(np.clip(1.1 + 0.16 * len(own), 2.4, 4.2))
        names = layer_labels(result)
        height = 2.9 if all(map(str.isdigit, names)) else 3.3  # inches
        figure = Figure(figsize=(width * len(kept), height), layout="constrained")
        panels = figure.subplots(1, len(kept), sharey=True, squeeze=False)[0]
        for index, (axes, percent) in enumerate(zip(panels, kept, strict=True)):
            _draw(axes, own[..., index], None if even is None else even[:, index])
            _name_layers(axes, names)
            axes.set_title(f"Best {percent}% of the blocks", loc="left")
        panels[0].set_ylabel("Share of the weight that they hold")
        panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
        what = wording(result, statistic).reading
        said = f"{what} Mean over {count} {noun}{'s' * (count != 1)}."
        figure.suptitle(said, x=0.01, ha="left", fontsize=8, parse_math=False)
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False
        )
    return figure


def _of_equal(result: xr.Dataset, name: str) -> np.ndarray | None:
    """``(layer, kept)`` of equal weights; None where they were not measured."""
    if name not in result:
        return None
    values = result[name].mean("text", skipna=True) if "text" in result[name].dims else result[name]
    return values.transpose("layer", "kept").values.astype(float)


def _draw(axes: Axes, own: np.ndarray, even: np.ndarray | None) -> None:
    """The heads of all layers, ``(layer, head)``, their medians, and equal weights, ``(layer)``."""
    layers = np.arange(len(own))
    at = np.broadcast_to(layers[:, None], own.shape)
    known = np.isfinite(own)
    axes.plot(
        at[known], own[known], "o", color=LEFT, alpha=0.5, markersize=3.4, markeredgewidth=0, label="a head"
    )
    middle = [np.median(row[there]) if there.any() else np.nan for row, there in zip(own, known, strict=True)]
    axes.hlines(
        middle, layers - 0.32, layers + 0.32, color=_INK, linewidth=1.6, label="median of a layer’s heads"
    )
    if even is not None:
        edges = np.append(layers - 0.5, layers[-1] + 0.5)
        axes.stairs(
            even, edges, baseline=None, color=RIGHT, linewidth=1.3, linestyle="--", label="equal weights"
        )
    axes.set(xlim=(-0.6, len(own) - 0.4), ylim=(0, 1.03), xlabel="Layer")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _name_layers(axes: Axes, names: list[str]) -> None:
    """Number the layers; where they are of several kinds, name them."""
    told = any(not name.isdigit() for name in names)
    if len(names) <= _FEW or told:
        every = -(-len(names) // 16)
        axes.set_xticks(range(0, len(names), every), names[::every], rotation=90 if told else 0)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
