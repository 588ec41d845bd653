"""Checks of sizes that a user gives."""

from __future__ import annotations

from torch import Tensor

from attnscope.errors import AttnscopeError


def check_least(least: int, **sizes: int) -> None:
    """Refuse sizes below the least.

    Examples
    --------
    >>> check_least(1, width=8, heads=0)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: found heads=0; expected 1 or more
    """
    for name, size in sizes.items():
        if size < least:
            raise AttnscopeError(f"found {name}={size}; expected {least} or more")


def check_width(name: str, states: Tensor, width: int) -> None:
    """Refuse states of another width than a layer was made for.

    Examples
    --------
    >>> import torch
    >>> check_width("keys", torch.zeros(2, 5, 3), 4)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: keys are 3 wide; expected 4, as this was made: give those, or make it for width 3
    """
    if states.shape[-1] != width:
        raise AttnscopeError(
            f"{name} are {states.shape[-1]} wide; expected {width}, as this was made: give those, or make it for width "
            f"{states.shape[-1]}"
        )


def check_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse queries and keys that cannot be compared, and keys without their values.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(5, 3)
    >>> check_operands(x, x, x[:4])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there are 5 keys and 4 values: every key needs its value
    """
    if query.shape[-1] != key.shape[-1]:
        raise AttnscopeError(
            f"query is {query.shape[-1]} wide and key {key.shape[-1]}: they must be equally wide to be compared"
        )
    if key.shape[-2] != value.shape[-2]:
        raise AttnscopeError(
            f"there are {key.shape[-2]} keys and {value.shape[-2]} values: every key needs its value"
        )
