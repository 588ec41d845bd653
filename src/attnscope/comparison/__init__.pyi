from ._compare import compare
from ._first_look import first_look

__all__ = [
    "compare",
    "first_look",
]
