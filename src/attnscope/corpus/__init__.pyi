from ._batch import Batch, collate
from ._chats import Chats, ChatTexts, are_chats
from ._given import kept
from ._groups import ROLES, GroupedWindows, Grouping, Groups, check_names, grouping_of
from ._opening import file_mode, is_standard_input, shown
from ._picture_parts import IMAGE, PLACES, VIDEO
from ._pictured_chats import written_in_parts
from ._pictured_window import Expanded, picture_groups, pictured_window
from ._shown import IdNames, split_character, with_marked_spaces
from ._text import Text
from ._videos import Video
from ._words import WordedWindows, WordRule, Words, in_words, word_rule_of
from .encoded import EncodedTexts, Sources, Texts, texts_and_targets, texts_of, windows_of
from .images import Image, Images, images_of
from .pairs import LinePairs, TargetTokenizer, shifted
from .pictured import PicturedText, PicturedTexts, pictured_of
from .sounds import Sound, Sounds, sounds_of
from .texts import Corpus
from .videos import Clip, Videos, videos_of
from .windows import Cutting, Frame, Place, Window, Windows, cut_windows, window_name

__all__ = [
    "IMAGE",
    "PLACES",
    "ROLES",
    "VIDEO",
    "Batch",
    "ChatTexts",
    "Chats",
    "Clip",
    "Corpus",
    "Cutting",
    "EncodedTexts",
    "Expanded",
    "Frame",
    "GroupedWindows",
    "Grouping",
    "Groups",
    "IdNames",
    "Image",
    "Images",
    "LinePairs",
    "PicturedText",
    "PicturedTexts",
    "Place",
    "Sound",
    "Sounds",
    "Sources",
    "TargetTokenizer",
    "Text",
    "Texts",
    "Video",
    "Videos",
    "Window",
    "Windows",
    "WordRule",
    "WordedWindows",
    "Words",
    "are_chats",
    "check_names",
    "collate",
    "cut_windows",
    "file_mode",
    "grouping_of",
    "images_of",
    "in_words",
    "is_standard_input",
    "kept",
    "picture_groups",
    "pictured_of",
    "pictured_window",
    "shifted",
    "shown",
    "sounds_of",
    "split_character",
    "texts_and_targets",
    "texts_of",
    "videos_of",
    "window_name",
    "windows_of",
    "with_marked_spaces",
    "word_rule_of",
    "written_in_parts",
]
