"""What analyses of bare arrays ask of them before they start."""

import numpy as np
from jaxtyping import Float

from attnscope.errors import AttnscopeError


def finite(name: str, array: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The array in float64, or an error that counts what is not a number.

    Examples
    --------
    >>> finite("values", np.ones(2, np.float32)).dtype
    dtype('float64')
    """
    values = np.asarray(array, dtype=np.float64)
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise AttnscopeError(
            f"{name} has {bad} entries of {values.size} that are NaN or infinite; all must be finite. "
            "Look for an overflow in half precision, and load the model in float32"
        )
    return values


def agree(what: str, first: str, size: int, second: str, other: int) -> None:
    """Raise unless two sizes are equal.

    Examples
    --------
    >>> agree("keys", "weights", 8, "values", 8)
    """
    if size != other:
        raise AttnscopeError(
            f"found {size} {what} in {first} and {other} in {second}; they must be equal. "
            "Take both from the same head and text"
        )
