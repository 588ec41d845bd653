"""What becomes of a head when words or positions are changed, or when its position scheme is taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope.figures.explain._common import (
    ALONE,
    INK,
    MEASURED,
    OFFSET,
    OTHERS,
    curve,
    head_panels,
    is_leftmost,
    legend_above,
    names,
    one_head,
    the_heads,
    up_to_the_mask,
    with_interval,
    zero_line,
)
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_BEFORE = "0.55"
_VARIANTS = {
    "model": "The model",
    "without_bias": "Bias at its mean",
    "none": "No pair turns",
    "fast": "Fast pairs turn (period below 16)",
    "middle": "Middle pairs (16 to 128)",
    "slow": "Slow pairs (128 and more)",
    "plain": "Plain text",
    "spaced": "Unknown tokens between",
    "relearned": "The same, positions learned anew",
}


def interventions(changes: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile before and after each change of words and positions.

    Rows are changes, columns heads. Grey is before, blue after, with 95% intervals over texts; where position
    ids changed places, the dashed line is the profile in the order of the ids. The number is the change of the
    weight at the offset that the head looks at (dotted), with its interval.

    Parameters
    ----------
    changes
        From `attnscope.mechanism`'s ``interventions``.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds none or a head does not exist.

    References
    ----------
    Yamamoto and Matsuzaki (EMNLP 2023), section 5 and figure 11.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.explain import interventions
    >>> grid = ("layer", "head")
    >>> made = xr.Dataset(
    ...     {
    ...         "profile_before": ((*grid, "offset"), np.array([[[0.8, 0.1, 0.1]]])),
    ...         "profile_after": (("change", *grid, "offset"), np.array([[[[0.3, 0.4, 0.3]]]])),
    ...         "mass_change": (("change", *grid), np.array([[[-0.5]]])),
    ...         "target": (grid, np.array([[-1]])),
    ...     },
    ...     coords={"offset": [-1, 0, 1], "change": ["positions-zero"]},
    ... )
    >>> interventions(made, [(0, 0)]).axes[0].get_title(loc="left")
    'Layer 0, head 0'
    """
    needs = ("profile_before", "profile_after", "mass_change", "target")
    pairs = the_heads(changes, heads, needs, purpose="interventions")
    rows = names(changes, "change")
    with figure_style():
        size = (1.75 * len(pairs) + 1.6, 0.8 * len(rows) + 0.9)
        figure = Figure(figsize=(max(size[0], 4.0), size[1]), layout="constrained")
        grid = figure.subplots(len(rows), len(pairs), sharex="col", sharey="col", squeeze=False)
        for column, (layer, head) in enumerate(pairs):
            part = up_to_the_mask(one_head(changes, layer, head), "profile_before")
            offset = part["offset"].values
            for row, name in enumerate(rows):
                axes = grid[row, column]
                _draw_change(axes, part, row, offset)
                if column == 0:
                    axes.set_ylabel(
                        name.replace("-", "\n", 1).replace("-", " "),
                        rotation=0,
                        ha="right",
                        va="center",
                        labelpad=6,
                        fontsize=7,
                    )
            grid[0, column].set_title(f"Layer {layer}, head {head}", loc="left")
            grid[0, column].set_ylim(0, 1.45 * grid[0, column].get_ylim()[1])
            grid[0, column].set_xlim(offset[0], offset[-1])
        figure.supxlabel(OFFSET, fontsize=8)
        figure.legend(*_legend(grid), loc="outside upper center", ncols=3, frameon=False, fontsize=7)
    return figure


def _legend(grid: np.ndarray) -> tuple[list[Artist], list[str]]:
    handles: dict[str, Artist] = {}
    for axes in grid.ravel():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return list(handles.values()), list(handles)


def _draw_change(axes: Axes, part: xr.Dataset, row: int, offset: np.ndarray) -> None:
    after = part.isel(change=row)
    if np.isfinite(part["target"]):
        axes.axvline(float(part["target"]), color="0.5", linewidth=0.6, linestyle=":")
    curve(axes, offset, with_interval(part, "profile_before"), _BEFORE, label="Before", linewidth=1.0)
    curve(axes, offset, with_interval(after, "profile_after"), MEASURED, label="After")
    if "profile_by_id" in after and np.isfinite(after["profile_by_id"].values).any():
        by_id = after["profile_by_id"].values
        curve(axes, offset, by_id, ALONE, label="After, by position id", linewidth=1.0, linestyle="--")
    value, low, high = (float(part) for part in with_interval(after, "mass_change"))
    if np.isfinite(value):
        text = f"{value:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if "mass_change_low" in after else "")
        axes.text(
            0.98,
            0.95,
            text.replace("-", "−"),
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=6,
            color=INK,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0},
        )
    axes.tick_params(labelsize=6)
    axes.locator_params(axis="y", nbins=3)


def wave_removal(removed: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile before waves are taken out of the position table, as expected after it, and after it.

    Bands are 95% intervals over texts.

    Parameters
    ----------
    removed
        From ``wave_removal``: ``profile_before``, ``profile_expected``, ``profile_after``.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds none or a head does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.explain import wave_removal
    >>> values = (("layer", "head", "offset"), np.array([[[0.8, 0.1, 0.1]]]))
    >>> made = xr.Dataset(
    ...     {f"profile_{name}": values for name in ("before", "expected", "after")}, coords={"offset": [-1, 0, 1]}
    ... )
    >>> len(wave_removal(made, [(0, 0)]).axes)
    1
    """
    needs = ("profile_before", "profile_expected", "profile_after")

    def draw(axes: Axes, offset: np.ndarray, part: xr.Dataset) -> None:
        curve(axes, offset, with_interval(part, "profile_before"), _BEFORE, label="Before", linewidth=1.0)
        curve(axes, offset, with_interval(part, "profile_after"), MEASURED, label="After")
        expected = part["profile_expected"].values
        curve(axes, offset, expected, ALONE, label="Expected after", linewidth=1.2, linestyle="--")

    pairs = the_heads(removed, heads, needs, purpose="wave_removal")
    return _profiles_of_heads(removed, pairs, "profile_before", draw)


def scheme_effect(profiles: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile as it is and with its position scheme changed: rotation (RoPE) or bias (T5, ALiBi).

    What the black line has and a coloured one has not is the doing of what was taken out. Bands are 95%
    intervals over texts.

    Parameters
    ----------
    profiles
        From ``rotation_effect`` or ``bias_effect``: ``profile (variant, layer, head, offset)``.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds none or a head does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.explain import scheme_effect
    >>> values = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 1, 1))
    >>> made = xr.Dataset(
    ...     {"profile": (("variant", "layer", "head", "offset"), values)},
    ...     coords={"variant": ["model", "none"], "offset": range(-2, 3)},
    ... )
    >>> len(scheme_effect(made, [(0, 0)]).axes)
    1
    """
    pairs = the_heads(profiles, heads, ("profile", "variant"), purpose="scheme_effect")
    variants = names(profiles, "variant")

    def draw(axes: Axes, offset: np.ndarray, part: xr.Dataset) -> None:
        for row, name in enumerate(variants):
            colour = INK if row == 0 else OTHERS[(row - 1) % len(OTHERS)]
            style = {"marker": "o", "markersize": 2.2} if row == 0 else {"linewidth": 1.1}
            values = with_interval(part.isel(variant=row), "profile")
            curve(axes, offset, values, colour, label=_VARIANTS.get(name, name), **style)

    return _profiles_of_heads(profiles, pairs, "profile", draw)


def _profiles_of_heads(
    result: xr.Dataset,
    pairs: Sequence[tuple[int, int]],
    name: str,
    draw: Callable[[Axes, np.ndarray, xr.Dataset], None],
) -> Figure:
    """A panel for each head, in which `draw` puts its curves over the offsets at which the named profile has weight."""
    with figure_style():
        figure, panels = head_panels(len(pairs), (2.0,))
        for index, ((layer, head), (axes,)) in enumerate(zip(pairs, panels, strict=True)):
            part = up_to_the_mask(one_head(result, layer, head), name)
            offset = part["offset"].values
            zero_line(axes)
            draw(axes, offset, part)
            axes.set(xlim=(offset[0], offset[-1]), ylim=(0, None))
            axes.set_title(f"Layer {layer}, head {head}", loc="left")
            if is_leftmost(index):
                axes.set_ylabel("Mean weight")
        figure.supxlabel(OFFSET, fontsize=8)
        legend_above(figure, panels[0][0], 3)
    return figure
