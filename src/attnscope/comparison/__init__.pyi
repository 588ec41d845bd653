from ._compare import compare, load_comparison
from ._samples import first_look

__all__ = [
    "compare",
    "first_look",
    "load_comparison",
]
