"""attnscope: where every attention head of a model looks and why, and the attention lineage to build and train."""

import importlib
from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope import mechanism
    from attnscope.mechanism.explain import explain
    from attnscope.statistics import scan
    from attnscope.translation.align import align
    from attnscope.translation.compare import compare
    from attnscope.translation.scoring import score
    from attnscope.translation.training import train
    from attnscope.translation.translate import translate
    from attnscope.walkthrough import walk

__version__ = "0.1.0"

__all__ = [
    "AttnscopeError",
    "align",
    "compare",
    "explain",
    "mechanism",
    "scan",
    "score",
    "train",
    "translate",
    "walk",
]

_VERBS = {
    "scan": "attnscope.statistics",
    "explain": "attnscope.mechanism.explain",
    "align": "attnscope.translation.align",
    "compare": "attnscope.translation.compare",
    "score": "attnscope.translation.scoring",
    "train": "attnscope.translation.training",
    "translate": "attnscope.translation.translate",
    "walk": "attnscope.walkthrough",
}


def __getattr__(name: str) -> Any:
    """Load PyTorch and the rest only when a verb is first used."""
    if name in _VERBS:
        return getattr(importlib.import_module(_VERBS[name]), name)
    if name == "mechanism":
        return importlib.import_module("attnscope.mechanism")
    raise AttributeError(f"module 'attnscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What can be completed, loaded or not."""
    return sorted({*globals(), *__all__})
