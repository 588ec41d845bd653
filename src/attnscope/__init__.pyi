from . import detection, faithfulness, mechanism, results, zoo
from ._expect import expect
from .comparison import compare
from .detection import roles
from .difference import contrasts, diff
from .errors import AttnscopeError
from .faithfulness import intervene, patch
from .mechanism import explain
from .results import open_run, runs
from .statistics import measure_weights, received, scan, watch, weights
from .statistics.generation import generate
from .training import train
from .translation import translate
from .translation.alignment import align
from .translation.evaluation import score
from .walkthrough import walk

__version__: str

__all__ = [
    "AttnscopeError",
    "align",
    "compare",
    "contrasts",
    "detection",
    "diff",
    "expect",
    "explain",
    "faithfulness",
    "generate",
    "intervene",
    "measure_weights",
    "mechanism",
    "open_run",
    "patch",
    "received",
    "results",
    "roles",
    "runs",
    "scan",
    "score",
    "train",
    "translate",
    "walk",
    "watch",
    "weights",
    "zoo",
]
