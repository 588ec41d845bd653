"""Text, and the windows of tokens that are cut from it."""

from attnscope.corpus.texts import Corpus, Sources, Text
from attnscope.corpus.windows import Batch, Window, Windows, collate, cut_windows

__all__ = ["Batch", "Corpus", "Sources", "Text", "Window", "Windows", "collate", "cut_windows"]
