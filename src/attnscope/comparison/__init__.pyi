from ._compare import compare
from ._first_look import first_look
from ._trial import Step

__all__ = [
    "Step",
    "compare",
    "first_look",
]
