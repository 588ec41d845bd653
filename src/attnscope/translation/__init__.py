"""Translation: parallel text, its subwords and its batches."""

from attnscope.translation.parallel import ParallelText, read_parallel
from attnscope.translation.vocabulary import encode_lines, train_subwords

__all__ = ["ParallelText", "encode_lines", "read_parallel", "train_subwords"]
