"""attnscope: where every attention head of a model looks, why it looks there, and whether it matters."""

from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.statistics import scan

__version__ = "0.1.0"

__all__ = ["AttnscopeError", "scan"]


def __getattr__(name: str) -> Any:
    """Load PyTorch and the rest only when a verb is first used."""
    if name == "scan":
        from attnscope.statistics import scan

        return scan
    raise AttributeError(f"module 'attnscope' has no attribute {name!r}")
