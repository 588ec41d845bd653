from . import (
    attention,
    capture,
    comparison,
    corpus,
    detection,
    difference,
    faithfulness,
    figures,
    mechanism,
    models,
    report,
    reproduction,
    results,
    statistics,
    store,
    training,
    translation,
    walkthrough,
    zoo,
)
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
    "attention",
    "capture",
    "compare",
    "comparison",
    "contrasts",
    "corpus",
    "detection",
    "diff",
    "difference",
    "expect",
    "explain",
    "faithfulness",
    "figures",
    "generate",
    "intervene",
    "measure_weights",
    "mechanism",
    "models",
    "open_run",
    "patch",
    "received",
    "report",
    "reproduction",
    "results",
    "roles",
    "runs",
    "scan",
    "score",
    "statistics",
    "store",
    "train",
    "training",
    "translate",
    "translation",
    "walk",
    "walkthrough",
    "watch",
    "weights",
    "zoo",
]
