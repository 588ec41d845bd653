"""Text, and the windows of tokens that are cut from it."""

from attnscope.corpus.encoded import EncodedTexts, Sources, Texts, texts_and_targets, texts_of, windows_of
from attnscope.corpus.pairs import LinePairs, TargetTokenizer, shifted
from attnscope.corpus.texts import Corpus, Text
from attnscope.corpus.windows import Batch, Window, Windows, collate, cut_windows, window_name

__all__ = [
    "Batch",
    "Corpus",
    "EncodedTexts",
    "LinePairs",
    "Sources",
    "TargetTokenizer",
    "Text",
    "Texts",
    "Window",
    "Windows",
    "collate",
    "cut_windows",
    "shifted",
    "texts_and_targets",
    "texts_of",
    "window_name",
    "windows_of",
]
