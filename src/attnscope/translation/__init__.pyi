from ._lines import Lines, is_unsegmented, lines_of_text, read_lines
from ._parallel_text import ParallelText, read_parallel
from ._task import TaskText, generate_task
from ._translate import translate, translate_lines
from ._translations import Translation, Translations
from ._vocabulary import BYTES, encode_lines, train_subwords

__all__ = [
    "BYTES",
    "Lines",
    "ParallelText",
    "TaskText",
    "Translation",
    "Translations",
    "encode_lines",
    "generate_task",
    "is_unsegmented",
    "lines_of_text",
    "read_lines",
    "read_parallel",
    "train_subwords",
    "translate",
    "translate_lines",
]
