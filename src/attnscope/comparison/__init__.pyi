from ._compare import compare, load_comparison
from ._notes import error_rate_note
from ._samples import sample_translations

__all__ = [
    "compare",
    "error_rate_note",
    "load_comparison",
    "sample_translations",
]
