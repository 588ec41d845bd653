from ._compare import compare, load_comparison
from ._notes import error_rate_note
from ._outputs import NO_ATTENTION
from ._samples import sample_translations

__all__ = [
    "NO_ATTENTION",
    "compare",
    "error_rate_note",
    "load_comparison",
    "sample_translations",
]
