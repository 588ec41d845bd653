"""Text, and the windows of tokens that are cut from it."""

from typing import TYPE_CHECKING

from attnscope._on_demand import on_demand
from attnscope.corpus.encoded import EncodedTexts, Sources, Texts, texts_and_targets, texts_of, windows_of
from attnscope.corpus.pairs import LinePairs, TargetTokenizer, shifted
from attnscope.corpus.texts import Corpus, Text
from attnscope.corpus.windows import Window, Windows, cut_windows, window_name

if TYPE_CHECKING:
    from attnscope.corpus._batch import Batch, collate

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

__getattr__ = on_demand(__name__, _batch="Batch collate")
