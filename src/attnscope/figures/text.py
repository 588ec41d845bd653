"""Drawing any token: in matplotlib's own font, in one for Japanese that attnscope brings, and in those installed."""

from __future__ import annotations

import logging
import re
import unicodedata
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING

from fontTools.ttLib import TTFont
from matplotlib import font_manager

from attnscope.corpus import with_marked_spaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.text import Text

_log = logging.getLogger("attnscope")
BASE_FONT = "DejaVu Sans"  # comes with matplotlib
JAPANESE_FONT = "IPAexGothic"  # of matplotlib-fontja, which is not imported: that sets rcParams
LACKING: set[str] = set()  # scripts that no font here has: their letters are boxes

_CJK_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
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
    """Fonts to draw with, in order: the base font, the Japanese one, and the first installed one that covers CJK."""
    installed = set(font_manager.fontManager.get_font_names())
    if JAPANESE_FONT not in installed and (package := find_spec("matplotlib_fontja")) and package.origin:
        font_manager.fontManager.addfont(Path(package.origin).parent / "fonts" / "ipaexg.ttf")
    return [BASE_FONT, JAPANESE_FONT, *[name for name in _CJK_FONTS if name in installed][:1]]


def drawable(token: str, *, longest: int = 14) -> str:
    r"""Return the token as it can be drawn: at most `longest` columns, spaces at its ends marked, none invisible.

    What no font could show, such as a tab, is written as its code point.

    Examples
    --------
    >>> from attnscope.figures.text import drawable
    >>> drawable(" the"), drawable("a\tb"), drawable("  "), drawable("猫")
    ('␣the', 'aU+0009b', '␣␣', '猫')
    """
    shown = with_marked_spaces(token) or "(empty)"
    parts: list[str] = []
    columns = 0
    for character in shown:
        part = f"U+{ord(character):04X}" if _is_invisible(character) else character
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


def fit_fonts(texts: Iterable[Text]) -> None:
    """Give each text of a figure the fonts that its letters need; say once which scripts no font has."""
    lacking: dict[str, str] = {}
    for text in texts:
        families = list(text.get_fontfamily())
        for character in filterfalse(str.isascii, text.get_text()):
            if _is_invisible(character) or any(_has(family, character) for family in families):
                continue
            if (other := _family_with(character)) is not None:
                families.append(other)
            else:
                lacking[_script_of(character)] = character
        text.set_fontfamily(families)
    if new := {script: letter for script, letter in lacking.items() if script not in LACKING}:
        LACKING.update(new)
        _log.warning(
            "figures: no font here has %s, so PNG and PDF show boxes in its place: install one (Debian: fonts-noto) "
            "and repeat the command",
            ", ".join(f"{script} ({letter})" for script, letter in new.items()),
        )


def needs_cff(text: Text) -> bool:
    """Whether drawing the text takes a font with CFF outlines, which a PDF cannot embed as Type 42."""
    drawn_in = (
        next((family for family in text.get_fontfamily() if _has(family, character)), BASE_FONT)
        for character in text.get_text()
        if not character.isascii()
    )
    return any(_is_cff(family) for family in set(drawn_in))


@lru_cache(maxsize=4096)
def _is_invisible(character: str) -> bool:
    category = unicodedata.category(character)
    of_space = category == "Zs" and character != " "
    return of_space or category in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _has(family: str, character: str) -> bool:
    path = font_manager.findfont(
        font_manager.FontProperties(family=[family])
    )  # as a name, - and : mean something
    return font_manager.get_font(path).get_char_index(ord(character)) > 0


@cache
def _family_with(character: str) -> str | None:
    """A font that has a letter: of those that figures name first, else of all that are installed by now."""
    for family in font_families():
        if _has(family, character):
            return family
    for entries in (lambda: font_manager.fontManager.ttflist, _installed_since):
        for entry in entries():
            plain = (entry.style, entry.weight) == ("normal", 400) and not entry.name.startswith(
                "Last Resort"
            )
            if plain and font_manager.get_font(entry.fname).get_char_index(ord(character)):
                return entry.name
    return None


@cache
def _installed_since() -> list[font_manager.FontEntry]:
    """Fonts that are newer than matplotlib's list, which it makes once and keeps."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - known:
        with suppress(Exception):  # not every file is a font that can be scaled
            font_manager.fontManager.addfont(path)
    return [entry for entry in font_manager.fontManager.ttflist if entry.fname not in known]


def _script_of(character: str) -> str:
    if unicodedata.category(character)[0] not in "LM":
        return "symbols"
    script = unicodedata.name(character, "this script").split()[0]
    return script if script == "CJK" else script.capitalize()


@lru_cache(maxsize=32)
def _is_cff(family: str) -> bool:
    path = font_manager.findfont(family)
    with TTFont(str(path), fontNumber=getattr(path, "face_index", 0), lazy=True) as font:
        return "glyf" not in font
