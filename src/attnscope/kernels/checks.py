"""Checks of what users give to the forms of attention."""

from torch import Tensor

from attnscope.support.errors import AttnscopeError


def check_width(name: str, states: Tensor, width: int) -> None:
    """Refuse states of another width than a layer was made for."""
    if states.shape[-1] != width:
        raise AttnscopeError(
            f"{name} are {states.shape[-1]} wide; expected {width}, as this was made: give those, or make it for width "
            f"{states.shape[-1]}"
        )


def check_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse queries and keys that cannot be compared, and keys without their values."""
    if query.shape[-1] != key.shape[-1]:
        raise AttnscopeError(
            f"query is {query.shape[-1]} wide and key {key.shape[-1]}: they must be equally wide to be compared"
        )
    if key.shape[-2] != value.shape[-2]:
        raise AttnscopeError(f"there are {key.shape[-2]} keys and {value.shape[-2]} values: every key needs its value")
