from ._batch import Batch, collate
from ._chats import Chats, ChatTexts, are_chats
from ._given import kept
from ._groups import GroupedWindows, Grouping, Groups, grouping_of
from ._opening import file_mode, is_standard_input, shown
from ._shown import IdNames, split_character, with_marked_spaces
from .encoded import EncodedTexts, Sources, Texts, texts_and_targets, texts_of, windows_of
from .images import Image, Images, images_of
from .pairs import LinePairs, TargetTokenizer, shifted
from .sounds import Sound, Sounds, sounds_of
from .texts import Corpus, Text
from .windows import Window, Windows, cut_windows, window_name

__all__ = [
    "Batch",
    "ChatTexts",
    "Chats",
    "Corpus",
    "EncodedTexts",
    "GroupedWindows",
    "Grouping",
    "Groups",
    "IdNames",
    "Image",
    "Images",
    "LinePairs",
    "Sound",
    "Sounds",
    "Sources",
    "TargetTokenizer",
    "Text",
    "Texts",
    "Window",
    "Windows",
    "are_chats",
    "collate",
    "cut_windows",
    "file_mode",
    "grouping_of",
    "images_of",
    "is_standard_input",
    "kept",
    "shifted",
    "shown",
    "sounds_of",
    "split_character",
    "texts_and_targets",
    "texts_of",
    "window_name",
    "windows_of",
    "with_marked_spaces",
]
