"""Text, and the windows of tokens that are cut from it."""

from attnscope.corpus.pairs import LinePairs, TargetTokenizer, shifted, target_corpus
from attnscope.corpus.texts import Corpus, Sources, Text
from attnscope.corpus.windows import Batch, Window, Windows, collate, cut_windows, window_name

__all__ = [
    "Batch",
    "Corpus",
    "LinePairs",
    "Sources",
    "TargetTokenizer",
    "Text",
    "Window",
    "Windows",
    "collate",
    "cut_windows",
    "shifted",
    "target_corpus",
    "window_name",
]
