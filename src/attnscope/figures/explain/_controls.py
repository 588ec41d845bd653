"""What is left of a head's shift when its cause is taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.errors import AttnscopeError
from attnscope.figures.explain._common import (
    ALONE,
    MEASURED,
    OTHERS,
    head_panels,
    is_leftmost,
    legend_above,
    names,
    one_head,
    tokens,
)
from attnscope.figures.palette import MARK
from attnscope.figures.reading import axis_values, require
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEAD, _COMPLETED, _CHOSEN = "The head", 1, OTHERS[1]
_ROWS = (_HEAD, "By the rotation R", "Keys of another head", "Positions shuffled", "Random weights")


def shift_controls(controls: xr.Dataset) -> Figure:
    """Draw what is left of each head's shift when its cause is taken away: it must vanish.

    Above, the coherence of queries and keys at the head's own offset; below, the offset found. Keys of another head,
    shuffled positions and random weights must lose the shift. Beside them the offset that the angles of the rotation
    give, for several completions: where they scatter or miss, its phase map is not to be relied on.

    Parameters
    ----------
    controls
        From `controls` of an explanation; heads without values are left out.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds none.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.figures.explain import shift_controls
    >>> from attnscope.mechanism import arrays
    >>> states, weight = np.random.default_rng(0).normal(size=(32, 6)), np.eye(6)[:, :2]
    >>> controls = arrays.shift_controls(states, weight, weight[::-1]).expand_dims(layer=[1], head=[3])
    >>> shift_controls(controls).axes[0].get_title(loc="left")
    'Layer 1, head 3'
    """
    require(controls, ("control", "coherence_at_offset", "band_offset"), purpose="shift_controls")
    pairs = [
        (layer, head)
        for layer in axis_values(controls, "layer")
        for head in axis_values(controls, "head")
        if np.isfinite(one_head(controls, layer, head)["band_offset"].values).any()
    ]
    if not pairs:
        raise AttnscopeError("shift_controls needs at least one head with values, but found none.")
    rows = np.array([_ROWS.index(_row(name)) for name in names(controls, "control")])
    with figure_style():
        figure, panels = head_panels(len(pairs), (1.05, 1.25), width=2.2)
        for index, ((layer, head), axes) in enumerate(zip(pairs, panels, strict=True)):
            part = one_head(controls, layer, head)
            _draw(axes[0], axes[1], part, rows)
            for panel in axes:
                panel.set(ylim=(len(_ROWS) - 0.5, -0.5))
                panel.set_yticks(range(len(_ROWS)), _ROWS if is_leftmost(index) else [])
                panel.tick_params(axis="y", length=0)
                panel.grid(axis="y", color="0.92", linewidth=0.6)
            axes[0].set_title(f"Layer {layer}, head {head}", loc="left")
        legend_above(figure, panels[0][0], 3)
    return figure


def _row(control: str) -> str:
    return {"head": _HEAD, "other key": "Keys of another head"}.get(control) or (
        "Positions shuffled" if control.startswith("permuted") else "Random weights"
    )


def _draw(coherence: Axes, offset: Axes, part: xr.Dataset, rows: np.ndarray) -> None:
    """Coherence at the head's offset, and the offset found, one row for each control."""
    at = float(part["band_offset"].values[rows == 0][0])
    _discs(coherence, part["coherence_at_offset"].values, rows)
    coherence.axvline(0, color="0.5", linewidth=0.6, linestyle=":")
    coherence.set(xlim=(-0.45, 1.05), xlabel=f"Coherence at offset {tokens(at)}")
    _discs(offset, part["band_offset"].values, rows)
    if "completed_shift" in part:
        _discs(offset, -part["completed_shift"].values, np.full(part.sizes["completion"], _COMPLETED))
    offset.axvline(at, color=MARK, linewidth=0.9, zorder=1)
    offset.set_xscale("symlog", linthresh=4, linscale=1.2)
    offset.set(xlim=(-300, 300), xlabel="Offset found, tokens")
    offset.set_xticks([-64, -4, 0, 4, 64], ["−64", "−4", "0", "+4", "+64"])
    offset.minorticks_off()


def _discs(axes: Axes, values: np.ndarray, rows: np.ndarray) -> None:
    for chosen, colour, label in (
        (rows == 0, MEASURED, "The head"),
        (rows > _COMPLETED, ALONE, "Must lose the shift"),
        (rows == _COMPLETED, _CHOSEN, "Depends on how R is completed"),
    ):
        style: dict[str, Any] = {"alpha": 0.6, "markersize": 4.5, "markeredgewidth": 0, "label": label}
        axes.plot(values[chosen], rows[chosen], "o", color=colour, **style)
