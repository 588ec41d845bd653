"""Estimates of patching beside what patching gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope.faithfulness import estimator_names
from attnscope.figures.palette import LEFT
from attnscope.figures.reading import rank_said
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr


def estimate_points(tree: xr.DataTree) -> Figure:
    """Draw each estimate against the change that was measured, a point for each place.

    Parameters
    ----------
    tree
        From `attnscope.patch`, with estimates.

    Examples
    --------
    >>> from attnscope.faithfulness import patch
    >>> from attnscope.figures.patch import estimate_points
    >>> len(estimate_points(patch(steps=2)).axes)
    2
    """
    patched, agreement = tree["patched"].to_dataset(), tree["agreement"].to_dataset()
    names = patched.estimator.values.tolist()
    measured = patched.effect.values.ravel()
    with figure_style():
        figure = Figure(figsize=(2.6 * len(names) + 0.4, 2.8), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(names)))
        for axes, name, title in zip(panels, names, estimator_names(names), strict=True):
            estimated = patched.estimate.sel(estimator=name).values.ravel()
            axes.axline((0, 0), slope=1, color="0.75", linewidth=0.8)
            axes.plot(measured, estimated, "o", color=LEFT, markersize=2.8, alpha=0.75, mew=0)
            axes.set_title(f"{title}\n{rank_said(agreement.sel(estimator=name))}", fontsize=8)
            axes.set_xlabel("Change measured, logits")
        panels[0].set_ylabel("Estimate, logits")
    return figure
