"""Drawing any token: a font for Chinese, Japanese and Korean where there is one, code points elsewhere."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from fontTools.ttLib import TTFont
from matplotlib import font_manager

from attnscope.corpus import with_marked_spaces

BASE_FONT = "DejaVu Sans"  # comes with matplotlib

_CJK_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "IPAexGothic",
    "IPAGothic",
    "TakaoGothic",
    "Hiragino Sans",
    "Hiragino Kaku Gothic ProN",
    "Yu Gothic",
    "Meiryo",
    "MS Gothic",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Malgun Gothic",
    "Arial Unicode MS",
)


def font_families() -> list[str]:
    """Fonts to draw with, in order: the base font and the first installed font that covers CJK."""
    installed = set(font_manager.fontManager.get_font_names())
    return [BASE_FONT, *[name for name in _CJK_FONTS if name in installed][:1]]


def drawable(token: str, *, longest: int = 14) -> str:
    r"""Return the token as it can be drawn: at most `longest` columns, and no character without a glyph.

    Spaces at its ends are marked. A character that no font holds is written as its code point, so that no empty box
    stands for it.

    Examples
    --------
    >>> from attnscope.figures.text import drawable
    >>> drawable(" the"), drawable("a\tb"), drawable("  ")
    ('␣the', 'aU+0009b', '␣␣')
    """
    shown = with_marked_spaces(token) or "(empty)"
    parts: list[str] = []
    columns = 0
    for character in shown:
        part = character if _has_glyph(character) else f"U+{ord(character):04X}"
        columns += len(part) * (
            2 if unicodedata.east_asian_width(character) in "WF" and len(part) == 1 else 1
        )
        if columns > longest and parts:
            return "".join(parts) + "…"
        parts.append(part)
    return "".join(parts)


def with_minus(text: str) -> str:
    """A text with a real minus before each negative offset that it names, as numbers beside it have.

    Examples
    --------
    >>> from attnscope.figures.text import with_minus
    >>> with_minus("kinds: offset -300 (layers 1-2), offset +2")
    'kinds: offset −300 (layers 1-2), offset +2'
    """
    return re.sub(r"(?<=\boffset )-(?=\d)", "−", text)


def needs_cff(text: str) -> bool:
    """Whether drawing the text takes a font with CFF outlines, which a PDF cannot embed as Type 42."""
    families = font_families()
    beyond = any(ord(character) not in _code_points(BASE_FONT) for character in text)
    return beyond and any(_is_cff(family) for family in families[1:])


def _has_glyph(character: str) -> bool:
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or (category == "Zs" and character != " "):
        return False
    return any(ord(character) in _code_points(family) for family in font_families())


@lru_cache(maxsize=32)
def _code_points(family: str) -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont(family)).get_charmap())


@lru_cache(maxsize=32)
def _is_cff(family: str) -> bool:
    path = font_manager.findfont(family)
    with TTFont(str(path), fontNumber=getattr(path, "face_index", 0), lazy=True) as font:
        return "glyf" not in font
