"""What form each layer's scores have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.explanation.study import Analysis

if TYPE_CHECKING:
    from attnscope.explanation.study import Study


def _forms(study: Study) -> xr.Dataset:
    """What form each layer's scores have and how well the found matrices reproduce them: dimension ``layer``."""
    layers = study.evidence.layers
    return xr.Dataset(
        {
            "form": ("layer", np.array([layer.projections.form for layer in layers], dtype=object)),
            "reason": ("layer", np.array([layer.projections.reason for layer in layers], dtype=object)),
            "error": ("layer", np.array([layer.projections.error for layer in layers])),
            "scale": ("layer", np.array([layer.projections.scale for layer in layers])),
        },
        coords={"layer": [layer.site.index for layer in layers]},
    )


ANALYSIS = Analysis("forms", "How each layer makes its scores", "Attention", _forms)
