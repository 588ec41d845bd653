"""The steps themselves, on arrays: products, division, mask, softmax, weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float

from attnscope.attention import masked_softmax
from attnscope.errors import AttnscopeError


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """What one head works on, float64.

    Attributes
    ----------
    Q, K, V
        As they enter the products.
    scale, allowed, bias, softcap, sink
        As in `attnscope.attention.attend`; `allowed` is its mask.
    """

    Q: Float[np.ndarray, "query r"]
    K: Float[np.ndarray, "key r"]
    V: Float[np.ndarray, "key value_width"]
    scale: float
    allowed: Bool[np.ndarray, "query key"] | None = None
    bias: Float[np.ndarray, "query key"] | None = None
    softcap: float | None = None
    sink: float | None = None


def follow(operands: HeadInputs) -> xr.Dataset:
    """Do the steps one by one; see `Walk.arrays` for their names.

    Examples
    --------
    >>> one = np.eye(2)
    >>> follow(HeadInputs(one, one, one, scale=0.0)).weights.values.tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    Q, K, V = operands.Q, operands.K, operands.V
    products = Q @ K.T
    allowed = np.ones(products.shape, dtype=bool) if operands.allowed is None else operands.allowed
    scaled = operands.scale * products
    scores = _scores(scaled, operands)
    weights = _softmax(scores, allowed, operands.sink)
    pair = ("query", "key")
    arrays = {
        "Q": (("query", "r"), Q),
        "K": (("key", "r"), K),
        "V": (("key", "value_width"), V),
        "products": (pair, products),
        "scaled": (pair, scaled),
        "scores": (pair, scores),
        "allowed": (pair, allowed),
        "weights": (pair, weights),
        "unscaled_weights": (pair, _softmax(_scores(products, operands), allowed, operands.sink)),
        "head_output": (("query", "value_width"), weights @ V),
    }
    if operands.bias is not None:
        arrays["bias"] = (pair, operands.bias)
    return xr.Dataset(arrays)


def _scores(scaled: np.ndarray, operands: HeadInputs) -> np.ndarray:
    cap = operands.softcap
    scores = scaled if cap is None else cap * np.tanh(scaled / cap)
    return scores if operands.bias is None else scores + operands.bias


def _softmax(scores: np.ndarray, allowed: np.ndarray, sink: float | None) -> np.ndarray:
    extra = None if sink is None else torch.tensor(sink, dtype=torch.float64)
    return masked_softmax(torch.from_numpy(scores), torch.from_numpy(allowed), extra).numpy()


def with_matrices(
    X: np.ndarray, memory: np.ndarray, matrices: dict[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, Any]:
    """X, and by ``"Q"``, ``"K"``, ``"V"`` the matrix and the bias that make them of it, as variables."""
    variables: dict[str, Any] = {"X": (("query", "width"), X)}
    if memory is not X:
        variables["memory"] = (("key", "key_width"), memory)
    for symbol, (matrix, bias) in matrices.items():
        width = "width" if symbol == "Q" or memory is X else "key_width"
        column = "value_width" if symbol == "V" else "r"
        variables[f"W_{symbol}"] = ((width, column), matrix)
        variables[f"b_{symbol}"] = ((column,), bias)
    return variables


def difference(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, as a share of the largest of theirs.

    Examples
    --------
    >>> difference(np.array([1.0, 3.0]), np.array([1.0, 4.0]))
    0.25
    """
    largest = float(np.abs(theirs).max())
    return float(np.abs(mine - theirs).max()) / (largest or 1.0)


def check_number(what: str, number: int, count: int) -> int:
    """Return the number if there is such a layer, head or token.

    Examples
    --------
    >>> check_number("head", 4, 4)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there is no head 4: they go from 0 to 3
    """
    if not 0 <= number < count:
        raise AttnscopeError(f"there is no {what} {number}: they go from 0 to {count - 1}")
    return number
