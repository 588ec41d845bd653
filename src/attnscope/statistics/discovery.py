"""The false discovery rate of several tests together."""

from __future__ import annotations

import numpy as np
import scipy
from jaxtyping import Bool, Float


def significant(p: Float[np.ndarray, ...], level: float = 0.05) -> Bool[np.ndarray, ...]:
    """Which p-values are significant at a false discovery rate; NaN are not tested."""
    tested, passes = np.isfinite(p), np.zeros(p.shape, bool)
    if tested.any():
        passes[tested] = scipy.stats.false_discovery_control(p[tested]) <= level
    return passes
