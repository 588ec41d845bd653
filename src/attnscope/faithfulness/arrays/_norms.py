"""Weights times the size of what they weigh."""

import numpy as np
from jaxtyping import Float

from attnscope.array_checks import agree, finite
from attnscope.faithfulness.arrays._checks import non_negative


def norm_weights(
    weights: Float[np.ndarray, "query key"],
    values: Float[np.ndarray, "value_key value_r"],
    output: Float[np.ndarray, "r width"],
) -> Float[np.ndarray, "query key"]:
    r"""Size of what each key adds to each query through one head: :math:`\lVert\alpha_{ij} f(x_j)\rVert`.

    :math:`f(x) = (x W_V + b_V) W_O`; over all keys and heads the vectors and b_O sum to the layer's output.

    Parameters
    ----------
    weights
        A of one head.
    values
        :math:`x W_V + b_V` of that head.
    output
        Its rows of W_O.

    Returns
    -------
    numpy.ndarray
        Norms, in the units of the model's hidden states.

    Raises
    ------
    AttnscopeError
        If the arrays do not belong together, or are not what they should be.

    References
    ----------
    Kobayashi, Kuribayashi, Yokoi and Inui (2020), Attention is Not Only a Weight: Analyzing Transformers with Vector
    Norms, EMNLP 2020, equation 3.

    Examples
    --------
    A sharp look at a token whose value is nothing adds nothing:

    >>> norm_weights(np.array([[0.9, 0.1]]), np.array([[0.0], [3.0]]), np.eye(1)).round(9).tolist()
    [[0.0, 0.3]]
    """
    weights = non_negative("weights", weights)
    values, output = finite("values", values), finite("W_O", output)
    agree("keys", "weights", weights.shape[1], "values", len(values))
    agree("columns", "values", values.shape[1], "rows of W_O", len(output))
    return weights * np.linalg.norm(values @ output, axis=1)
