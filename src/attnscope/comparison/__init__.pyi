from ._compare import compare
from ._samples import first_look

__all__ = [
    "compare",
    "first_look",
]
