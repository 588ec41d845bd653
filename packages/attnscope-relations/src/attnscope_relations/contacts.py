"""How well heads rank the pairs of residues of a protein that are in contact, as Rao et al. (2021) score it."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from torch import Tensor

Weights = TypeVar("Weights", np.ndarray, Tensor)


def contact_features(weights: Weights) -> Weights:
    """Weights from residue to residue, symmetrised and corrected by their average product, as ESM uses them.

    Rao et al. (2021): :math:`s = a + a^T`, less the product of its sums over row and column, over its whole sum (the
    average product correction of Dunn et al. 2008).

    Parameters
    ----------
    weights
        ``(..., residue, residue)``, an array or a tensor, without special tokens: the maps of heads, for instance.

    Returns
    -------
    ndarray or Tensor
        ``(..., residue, residue)``, of the same kind.

    Examples
    --------
    >>> import numpy as np
    >>> features = contact_features(np.array([[0.0, 0.6, 0.4], [0.2, 0.2, 0.6], [0.0, 0.6, 0.4]]))
    >>> features.round(2).tolist()
    [[-0.24, 0.02, 0.22], [0.02, -0.41, 0.39], [0.22, 0.39, -0.61]]
    """
    both: Any = weights + weights.swapaxes(-1, -2)
    rows = both.sum(-1)[..., :, None]
    columns = both.sum(-2)[..., None, :]
    whole = both.sum((-1, -2))[..., None, None]
    return both - rows * columns / (whole + (whole == 0))
