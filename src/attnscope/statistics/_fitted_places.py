r"""A head that knows the place alone: the weights that have given sums of rows and of places.

Of all tables of weights :math:`A_{ij} = r_i u_{p(i, j)}` the one that has a head's row sums and, at each place
:math:`p`, its sum of the weights. Found by iterative proportional fitting (Deming and Stephan 1940).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

_ROUNDS = 50
_NEAR = 1e-6  # of all weight, to which each place must be met
NONE = 1e-300  # instead of 0 below a fraction

Array = TypeVar("Array", Tensor, np.ndarray)


def fitted_places(sums: Array, mass: Array, counts: Array) -> tuple[Array, Array]:
    """The weight of a key at each place, ``(..., head, place)``, and that of each row, ``(..., head, row)``: factors.

    Rows and places are met in turn, places last: to meet the rows as they are, scale them once more (`row_factors`).

    Parameters
    ----------
    sums
        Sums of the weights at each place, ``(..., head, place)``.
    mass
        Sum of each row, ``(..., head, row)``; 0 where a row does not count.
    counts
        How many keys each row sees at each place, ``(..., row, place)``: the same for all heads.

    Examples
    --------
    >>> counts = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> share, row = fitted_places(np.array([[1.8, 1.2]]), np.ones((1, 3)), counts)
    >>> weights = row[0, :, None] * share[0] * counts
    >>> weights.sum(0).round(3).tolist(), weights.sum(1).round(3).tolist()
    ([1.8, 1.2], [1.0, 1.0, 1.0])
    """
    share, row = sums * 0.0 + 1.0, mass
    near = _NEAR * float(mass.sum(-1).max())
    for _ in range(_ROUNDS):
        row = row_factors(share, mass, counts)
        reached = row @ counts
        if float(abs(share * reached - sums).max()) <= near:
            break
        share = sums / reached.clip(min=NONE)
    return share, row


def row_factors(share: Array, mass: Array, counts: Array) -> Array:
    """What the rows are multiplied by, ``(..., head, row)``, so that each has its sum.

    Examples
    --------
    >>> row_factors(np.array([[2.0, 1.0]]), np.ones((1, 2)), np.array([[1.0, 0.0], [1.0, 2.0]])).tolist()
    [[0.5, 0.25]]
    """
    return mass / (share @ counts.mT).clip(min=NONE)
