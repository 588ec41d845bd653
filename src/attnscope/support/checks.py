"""Checks of what a user gives, before anything is done with it."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float

from attnscope.support.errors import AttnscopeError, nearest, reason_of

Name = TypeVar("Name", bound=str)
#: Parameters that are checked here and have no flag on the command line.
WITHOUT_FLAG = {
    *("bins", "bound", "columns", "components", "curves", "draws", "each", "fractions"),
    *("intervention_texts", "masked", "near", "permutations", "predictions"),
    *("restarts", "shift", "tests", "tokens"),
}
FORMATS = ("svg", "pdf", "png")  # of figures


def check_whole(least: int, most: int | None = None, **values: Any) -> None:
    """Refuse what is no whole number from `least` to `most`, by default the largest that fits; None was not given."""
    for name, value in values.items():
        if value is None:
            continue
        whole = is_a(numbers.Integral, value)
        largest = sys.maxsize if most is None else most
        if not whole or value < least or value > largest:
            bounded = most is not None or (whole and value > largest)
            upper = f"from {least} to {largest}" if bounded else f"of {least} or more"
            raise AttnscopeError(f"{_called(name)} is {shortly(value)}; expected a whole number {upper}")


def check_installed(what: str, package: str, extra: str) -> None:
    """Reject what needs an optional package that is not installed."""
    if find_spec(package) is None:
        raise AttnscopeError(f"{what} needs {package}, which is not installed: pip install 'attnscope[{extra}]'")


def check_real(least: float, most: float | None = None, **values: Any) -> None:
    """Refuse what is no finite number from `least` to `most`; None was not given."""
    for name, value in values.items():
        if value is None:
            continue
        real = is_a(numbers.Real, value) and math.isfinite(value)
        if not real or value < least or (most is not None and value > most):
            upper = f"from {least:g} to {most:g}" if most is not None else f"of {least:g} or more"
            raise AttnscopeError(f"{_called(name)} is {shortly(value)}; expected a number {upper}")


def check_some(expected: str, **values: Sequence[Any] | Mapping[Any, Any] | None) -> None:
    """Refuse a list in which there is nothing to do; None was not given."""
    for name, value in values.items():
        if value is not None and not len(value):
            raise AttnscopeError(f"{name} is {shortly(value)}; expected one or more {expected}")


def check_kind(expected: str, *kinds: type, **values: Any) -> None:
    """Refuse what is of no kind that was expected."""
    for name, value in values.items():
        if not isinstance(value, kinds):
            raise unexpected(expected, value, name)


def unexpected(expected: str, value: object, name: str, choices: Sequence[str] = ()) -> AttnscopeError:
    """The error for a value that is not what was expected, such as one of some words."""
    kind = type(value).__name__
    plain = isinstance(value, str | int | float | list | tuple | dict)
    description = f"{shortly(value)} ({kind})" if plain else f"of type {kind}"
    near = nearest(value, choices) if isinstance(value, str) else ""
    if expected.startswith("one of "):
        return AttnscopeError(f"{name} is {description}; expected one of {expected.removeprefix('one of ')}" + near)
    return AttnscopeError(f"{name} is {description}; expected {expected}" + near)


def chosen(what: str, names: Sequence[str] | str | None, choices: Collection[Name]) -> list[Name]:
    """The names that are known, in their order; None means all, a string holds names with commas between."""
    requested = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    unknown = [name for name in requested or () if name not in choices]
    if unknown:
        near = nearest(str(unknown[0]), choices)
        raise AttnscopeError(f"there is no {what} {shortly(unknown[0])}: choose from {', '.join(choices)}" + near)
    if requested is not None and not len(requested):
        raise AttnscopeError(f"no {what} was named: choose from {', '.join(choices)}")
    return [name for name in choices if requested is None or name in requested]


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats; an error for those that figures do not have."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        near = nearest(unknown[0], FORMATS)
        raise AttnscopeError(f"figures are not written as {unknown[0]!r}: choose among {', '.join(FORMATS)}" + near)
    return tuple(formats)


def is_a(kind: type, value: Any) -> bool:
    """Whether a value is of a kind; True and False are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _called(name: str) -> str:
    """A parameter's name in Python, and on the command line where it has one there."""
    if name in WITHOUT_FLAG:
        return name
    return f"{name} (--{name.replace('_', '-')})"


def shortly(value: object) -> str:
    """A value that a user gave, as far as it fits into a message."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else text[:37] + "..."  # noqa: PLR2004


_REAL = "biuf"  # NumPy's kinds of dtypes: True and False, whole numbers, floating point


def finite(name: str, array: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The array in float64, or an error that says what is not a finite real number."""
    values = real(name, array)
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise AttnscopeError(
            f"{name} has {bad} entries of {values.size} that are NaN or infinite; all must be finite. "
            "Look for an overflow in half precision, and load the model in float32"
        )
    return values


def shaped(name: str, array: Float[np.ndarray, "*any"], dims: str) -> Float[np.ndarray, "*any"]:
    """The same of an array that must have as many dimensions as are named."""
    values = real(name, array)
    expected = dims.count(",") + 1
    if values.ndim != expected:
        shape = f"is of shape {values.shape}" if values.ndim else "is one number"
        raise AttnscopeError(f"{name} {shape}; expected {expected} dimension{'s' * (expected != 1)}, ({dims})")
    return finite(name, values)


def real(name: str, array: object) -> Float[np.ndarray, "*any"]:
    """The array in float64, or an error where it is not of real numbers; NaN is one."""
    try:
        values = np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths; a tensor with a gradient
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
    """Raise unless two sizes are equal."""
    if size != other:
        raise AttnscopeError(
            f"found {size} {what} in {first} and {other} in {second}; they must be equal. "
            "Take both from the same head and text"
        )


def check_least(least: int, **sizes: int) -> None:
    """Refuse sizes below the least."""
    for name, size in sizes.items():
        if size < least:
            raise AttnscopeError(f"found {name}={size}; expected {least} or more")


def is_path(path: Path, kind: Literal["exists", "is_file", "is_dir"]) -> bool:
    """Whether there is such a file or folder; False for what is too long for a name."""
    try:
        return getattr(path, kind)()
    except OSError:  # a name that is too long
        return False
