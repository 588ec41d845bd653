"""Translation: parallel text, its subwords and its batches; a generated task."""

from attnscope.translation.batches import (
    EncodedText,
    collate,
    encode_pairs,
    epoch_batches,
    fullness,
    split_batch,
)
from attnscope.translation.parallel import ParallelText, read_parallel
from attnscope.translation.task import TaskText, generate_task
from attnscope.translation.vocabulary import encode_lines, train_subwords

__all__ = [
    "EncodedText",
    "ParallelText",
    "TaskText",
    "collate",
    "encode_lines",
    "encode_pairs",
    "epoch_batches",
    "fullness",
    "generate_task",
    "read_parallel",
    "split_batch",
    "train_subwords",
]
