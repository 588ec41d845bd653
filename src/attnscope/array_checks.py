"""What analyses of bare arrays ask of them before they start."""

import numpy as np
from jaxtyping import Float

from attnscope.errors import AttnscopeError, reason_of

_REAL = "biuf"  # NumPy's kinds of dtypes: True and False, whole numbers, floating point


def finite(name: str, array: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The array in float64, or an error that says what is not a finite real number.

    Examples
    --------
    >>> finite("values", np.ones(2, np.float32)).dtype
    dtype('float64')
    """
    values = real(name, array)
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise AttnscopeError(
            f"{name} has {bad} entries of {values.size} that are NaN or infinite; all must be finite. "
            "Look for an overflow in half precision, and load the model in float32"
        )
    return values


def shaped(name: str, array: Float[np.ndarray, "*any"], dims: str) -> Float[np.ndarray, "*any"]:
    """The same of an array that must have as many dimensions as are named.

    Parameters
    ----------
    name
        What the array is called.
    array
        The numbers.
    dims
        What its dimensions are, such as ``"position, column"``.

    Raises
    ------
    AttnscopeError
        If it has another number of dimensions, or holds what is not a finite real number.

    Examples
    --------
    >>> shaped("X", np.ones((4, 2)), "position, column").shape
    (4, 2)
    >>> shaped("X", np.ones(4), "position, column")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: X is of shape (4,); expected 2 dimensions, (position, column)
    """
    values = real(name, array)
    expected = dims.count(",") + 1
    if values.ndim != expected:
        found = f"is of shape {values.shape}" if values.ndim else "is one number"
        raise AttnscopeError(
            f"{name} {found}; expected {expected} dimension{'s' * (expected != 1)}, ({dims})"
        )
    return finite(name, values)


def real(name: str, array: object) -> Float[np.ndarray, "*any"]:
    """The array in float64, or an error where it is not of real numbers; NaN is one.

    An imaginary part would be lost in silence.

    Examples
    --------
    >>> real("X", np.ones(2) * 1j)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: X has complex numbers (complex128); expected real ones. Give the real part ...
    """
    try:
        values = np.asarray(array)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # rows of several lengths; a tensor with a gradient
        raise AttnscopeError(
            f"{name} cannot be read as an array ({reason_of(error)}); expected real numbers"
        ) from error
    if values.dtype.kind == "c":
        raise AttnscopeError(
            f"{name} has complex numbers ({values.dtype}); expected real ones. Give the real part (.real) or the "
            "size (abs), whichever is meant"
        )
    if values.dtype.kind not in _REAL:
        kind = type(array).__name__
        of = kind if not values.shape else f"{kind} with entries of dtype {values.dtype}"
        raise AttnscopeError(f"{name} is of type {of}; expected an array of real numbers")
    return values.astype(np.float64, copy=False)


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
