"""What is left of a head's shift when its cause is taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.errors import AttnscopeError
from attnscope.figures.mechanism._common import (
    ALONE,
    MEASURED,
    NOISE,
    head_panels,
    is_leftmost,
    legend_above,
    names,
    one_head,
    tokens,
)
from attnscope.figures.palette import MARK
from attnscope.figures.reading import axis_values, require
from attnscope.figures.style import look

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from matplotlib.figure import Figure

_HEAD, _COMPLETED = "The head", 1
_ROWS = (_HEAD, "R completed otherwise", "Keys of another head", "Positions shuffled", "Random weights")


def shift_controls(controls: xr.Dataset) -> Figure:
    """Draw what is left of each head's shift when its cause is taken away: it must vanish.

    Above, the share of the rotation's energy within a token of one shift, beside that of angles spread evenly
    (grey ticks); below, the coherence of queries and keys and the offset read off. Other completions of the
    rotation must not matter; keys of another head, shuffled positions and random weights must lose the shift.

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
    >>> from attnscope.figures.mechanism import shift_controls
    >>> from attnscope.mechanism import controls, phase_map
    >>> states, weight = np.random.default_rng(0).normal(size=(32, 6)), np.eye(6)[:, :2]
    >>> found = controls.shift_controls(states, weight, weight[::-1]).expand_dims(layer=[1], head=[3])
    >>> shift_controls(found).axes[0].get_title(loc="left")
    'Layer 1, head 3'
    """
    require(
        controls,
        ("control", "share_near", "uniform_share", "coherence", "band_offset"),
        purpose="shift_controls",
    )
    pairs = [
        (layer, head)
        for layer in axis_values(controls, "layer")
        for head in axis_values(controls, "head")
        if np.isfinite(one_head(controls, layer, head)["coherence"].values).any()
    ]
    if not pairs:
        raise AttnscopeError("shift_controls needs at least one head with values, but found none.")
    rows = np.array([_ROWS.index(_row(name)) for name in names(controls, "control")])
    with look():
        figure, panels = head_panels(len(pairs), (1.15, 1.15, 1.15), width=2.2)
        for index, ((layer, head), axes) in enumerate(zip(pairs, panels, strict=True)):
            part = one_head(controls, layer, head)
            _draw(axes, part, rows)
            for one in axes:
                one.set(ylim=(len(_ROWS) - 0.5, -0.5))
                one.set_yticks(range(len(_ROWS)), _ROWS if is_leftmost(index) else [])
                one.tick_params(axis="y", length=0)
            axes[0].set_title(f"Layer {layer}, head {head}", loc="left")
        legend_above(figure, panels[0][0], 4)
    return figure


def _row(control: str) -> str:
    return {"head": _HEAD, "other key": "Keys of another head"}.get(control) or (
        "Positions shuffled" if control.startswith("permuted") else "Random weights"
    )


def _draw(axes: list[Axes], part: xr.Dataset, rows: np.ndarray) -> None:
    """Share of the energy, coherence and offset of one head, one row for each control."""
    share, coherence, offset = axes
    at = float(part["band_offset"].values[rows == 0][0])
    panels = (
        (share, "share_near", "completed_share", 1, "Energy near one offset"),
        (coherence, "coherence", "", 1, "Coherence"),
        (offset, "band_offset", "completed_shift", -1, "Offset, tokens"),
    )
    for one, name, completed, sign, label in panels:
        one.grid(axis="y", color="0.92", linewidth=0.6)
        _discs(one, part[name].values, rows)
        if completed in part:
            _discs(one, sign * part[completed].values, np.full(part.sizes["completion"], _COMPLETED))
        one.set_xlabel(label)
    level = part["uniform_share"].values
    share.plot(level, rows, "|", color=NOISE, markersize=8, label="If angles were spread evenly", zorder=4)
    for one in (share, coherence):
        one.set_xlim(-0.02, 1.04)
    offset.axvline(at, color=MARK, linewidth=0.9, zorder=1)
    offset.set_title(tokens(at), loc="right", color=MARK, fontsize=7, pad=2)
    offset.set_xscale("symlog", linthresh=4, linscale=1.2)
    offset.set(xlim=(-300, 300))
    offset.set_xticks([-64, -4, -1, 1, 4, 64], ["−64", "−4", "−1", "+1", "+4", "+64"])
    offset.minorticks_off()


def _discs(axes: Axes, values: np.ndarray, rows: np.ndarray) -> None:
    for chosen, colour, label in (
        (rows <= _COMPLETED, MEASURED, "Must show the shift"),
        (rows > _COMPLETED, ALONE, "Must lose it"),
    ):
        axes.plot(
            values[chosen],
            rows[chosen],
            "o",
            color=colour,
            alpha=0.6,
            markersize=4.5,
            markeredgewidth=0,
            label=label,
        )
