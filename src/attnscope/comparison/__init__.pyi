from ._compare import compare, load_comparison
from ._samples import sample_translations

__all__ = [
    "compare",
    "load_comparison",
    "sample_translations",
]
