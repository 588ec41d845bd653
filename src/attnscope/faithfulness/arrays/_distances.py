"""How far two distributions are from each other."""

import numpy as np
from jaxtyping import Float
from scipy.special import rel_entr

from attnscope.array_checks import agree
from attnscope.faithfulness.arrays._checks import non_negative, same_sums


def total_variation(
    p: Float[np.ndarray, "*batch outcome"], q: Float[np.ndarray, "*batch other_outcome"]
) -> Float[np.ndarray, "*batch"]:
    r"""Total variation distance, :math:`\mathrm{TVD} = \tfrac12\sum_j |p_j - q_j|`.

    Parameters
    ----------
    p, q
        Distributions over the last axis, with equal sums: weights of a row, or a model's predictions.

    Returns
    -------
    numpy.ndarray
        Shares: between 0 and 1 for distributions.

    Raises
    ------
    AttnscopeError
        If an entry is negative or not finite, or the sums or numbers of outcomes differ.

    Examples
    --------
    >>> float(total_variation(np.array([0.5, 0.5]), np.array([0.75, 0.25])))
    0.25
    """
    p, q = _pair(p, q)
    return np.asarray(np.abs(p - q).sum(-1) / 2)


def jensen_shannon(
    p: Float[np.ndarray, "*batch outcome"], q: Float[np.ndarray, "*batch other_outcome"]
) -> Float[np.ndarray, "*batch"]:
    r"""Jensen-Shannon divergence, :math:`\tfrac12\mathrm{KL}(p\|m) + \tfrac12\mathrm{KL}(q\|m)`, m half of the sum.

    With distributions, :math:`0 \le \mathrm{JSD} \le \ln 2` and
    :math:`\mathrm{TVD}^2/2 \le \mathrm{JSD} \le \mathrm{TVD}\,\ln 2`.

    Parameters
    ----------
    p, q
        See `total_variation`.

    Returns
    -------
    numpy.ndarray
        Nats.

    Raises
    ------
    AttnscopeError
        See `total_variation`.

    References
    ----------
    Lin (1991), Divergence measures based on the Shannon entropy, IEEE Transactions on Information Theory 37.

    Examples
    --------
    >>> float(jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])) / np.log(2))
    1.0
    """
    p, q = _pair(p, q)
    middle = (p + q) / 2
    divergence = (rel_entr(p, middle).sum(-1) + rel_entr(q, middle).sum(-1)) / 2
    return np.asarray(np.maximum(divergence, 0.0))


def _pair(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, q = non_negative("the first distribution", p), non_negative("the second distribution", q)
    agree("outcomes", "the first distribution", p.shape[-1], "the second distribution", q.shape[-1])
    same_sums(p, q)
    return p, q
