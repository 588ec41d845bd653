from ._checkpoints import Checkpoints
from ._data import HELD_OUT, MaskedWindows, read_material, read_pairs
from ._known_alignments import attends, judge_known
from ._log import read_log
from ._loop import finished_metrics, train
from ._presets import PRESETS
from ._processes import is_first, threads_of_one
from ._results import training_results

__all__ = [
    "HELD_OUT",
    "PRESETS",
    "Checkpoints",
    "MaskedWindows",
    "attends",
    "finished_metrics",
    "is_first",
    "judge_known",
    "read_log",
    "read_material",
    "read_pairs",
    "threads_of_one",
    "train",
    "training_results",
]
