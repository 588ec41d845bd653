"""How large a change is: in a unit that is the same in both directions and never vanishes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

ROUNDING = 1e-6  # relative: numbers that differ by less are the same, but for the order of sums


def sizes(
    change: Float[np.ndarray, "*cell layer head"],
    before: Float[np.ndarray, "*cell layer head"],
    after: Float[np.ndarray, "*cell layer head"],
) -> Float[np.ndarray, "*cell layer head"]:
    r"""Changes in standard deviations of all heads of both sides together.

    The spread of one side alone would vanish where its heads are alike, as in an untrained model, and sizes would then
    be those of noise. All 2n heads have a standard deviation of at least :math:`|d| / 2\sqrt{n}` where one of them
    changes by d: no size is above :math:`2\sqrt{n}`, and before and after exchanged it has the other sign and is as
    large. Where every head changes alike, by much more than heads differ, each size is 2.

    Parameters
    ----------
    change, before, after
        Changes, and the means that they lead from and to; NaN where there is no head.

    Returns
    -------
    numpy.ndarray
        Sizes of the changes, no unit; 0 where all heads are the same but for rounding, NaN where there is no head.

    Examples
    --------
    >>> untrained, trained = np.array([[0.5, 0.5]]), np.array([[0.1, 0.9]])
    >>> sizes(trained - untrained, untrained, trained).round(2).tolist()
    [[-1.41, 1.41]]
    >>> sizes(untrained - trained, trained, untrained).round(2).tolist()
    [[1.41, -1.41]]
    """
    both = np.concatenate([before.reshape(*before.shape[:-2], -1), after.reshape(*after.shape[:-2], -1)], -1)
    known = np.isfinite(both)
    count = np.maximum(known.sum(-1, keepdims=True), 1)
    values = np.where(known, both, 0.0)
    apart = np.where(known, values - values.sum(-1, keepdims=True) / count, 0.0)
    spread = np.sqrt((apart**2).sum(-1, keepdims=True) / count)
    told = spread > ROUNDING * np.abs(values).max(-1, keepdims=True)
    return change / np.where(told, spread, np.inf)[..., None]
