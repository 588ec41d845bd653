"""Translation: parallel text, its subwords and its batches."""

from attnscope.translation.batches import (
    EncodedText,
    collate,
    encode_pairs,
    epoch_batches,
    fullness,
    split_batch,
)
from attnscope.translation.parallel import ParallelText, read_parallel
from attnscope.translation.vocabulary import encode_lines, train_subwords

__all__ = [
    "EncodedText",
    "ParallelText",
    "collate",
    "encode_lines",
    "encode_pairs",
    "epoch_batches",
    "fullness",
    "read_parallel",
    "split_batch",
    "train_subwords",
]
