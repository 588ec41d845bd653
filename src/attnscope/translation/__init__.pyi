from ._lines import is_unsegmented, read_lines
from ._parallel_text import ParallelText, read_parallel
from ._task import TaskText, generate_task
from ._translate import Translation, translate, translate_lines
from ._vocabulary import BYTES, encode_lines, train_subwords

__all__ = [
    "BYTES",
    "ParallelText",
    "TaskText",
    "Translation",
    "encode_lines",
    "generate_task",
    "is_unsegmented",
    "read_lines",
    "read_parallel",
    "train_subwords",
    "translate",
    "translate_lines",
]
