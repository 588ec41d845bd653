"""Translation: parallel text, its subwords and its batches."""

from attnscope.translation.parallel import ParallelText, read_parallel

__all__ = ["ParallelText", "read_parallel"]
