from ._aligning_head import attends, best_aligning_head
from ._build import check_model
from ._checkpoints import Checkpoints
from ._data import HELD_OUT, MaskedWindows, read_data, training_pairs
from ._log import read_log
from ._loop import updates_done
from ._presets import PRESETS, said_of_preset, settings_for, shown_default
from ._processes import is_first, threads_of_one
from ._results import training_results
from ._train import finished_metrics, train

__all__ = [
    "HELD_OUT",
    "PRESETS",
    "Checkpoints",
    "MaskedWindows",
    "attends",
    "best_aligning_head",
    "check_model",
    "finished_metrics",
    "is_first",
    "read_data",
    "read_log",
    "said_of_preset",
    "settings_for",
    "shown_default",
    "threads_of_one",
    "train",
    "training_pairs",
    "training_results",
    "updates_done",
]
