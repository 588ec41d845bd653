"""The words of terminal, pages and figures in another language, from one catalogue of messages.

Verbs and stored results are in English. They are translated where they are displayed: `translate` looks a text up, or
finds the message from which it was made: f"{count} of {total} heads" is the message "{0} of {1} heads". Texts without
an entry stay in English. `scripts/messages.py` compares the catalogue with the code.
"""

from __future__ import annotations

import ast
import html
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len

from attnscope.support.errors import AttnscopeError

LANGUAGES = ("en", "ja")
PLACEHOLDER = re.compile(r"\{(\d+)\}")
_current = "en"


def set_language(name: str | None = None) -> None:
    """The work of `attnscope.set_language`."""
    global _current  # noqa: PLW0603
    if name not in {None, *LANGUAGES}:
        raise AttnscopeError(f"the language is {name!r:.60}; expected {' or '.join(map(repr, LANGUAGES))}")
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")[:2]
    _current = name or (locale if locale in LANGUAGES else "en")


def language() -> str:
    """The language of terminal, pages and figures."""
    return _current


_ENTRY = re.compile(r'^(msgid|msgstr) ((?:"(?:[^"\\]|\\.)*"\n?)+)', re.MULTILINE)


def read_catalogue(folder: Path) -> dict[str, str]:
    """The entries that are translated: compiled in an installed package, the source in a checkout."""
    compiled = folder / "attnscope.mo"
    if compiled.exists():
        data = compiled.read_bytes()
        _, _, count, *tables = struct.unpack_from("<5I", data)
        where = [[struct.unpack_from("<2I", data, table + 8 * entry) for entry in range(count)] for table in tables]
        texts = [[data[start : start + size].decode() for size, start in strings] for strings in where]
    else:
        source = (folder / "attnscope.po").read_text(encoding="utf-8")
        entries = [
            (keyword, "".join(map(ast.literal_eval, quoted.splitlines()))) for keyword, quoted in _ENTRY.findall(source)
        ]
        texts = [[text for keyword, text in entries if keyword == wanted] for wanted in ("msgid", "msgstr")]
    return {message: translated for message, translated in zip(*texts, strict=True) if message and translated}


_LONG = 3  # words of a message whose values may be lists
_LINE = re.compile(r", line [\d,]+$")  # of a file


class _Template(NamedTuple):
    message: str
    literal: str  # its longest part between values
    size: int  # letters of all parts
    words: int

    @classmethod
    def of(cls, message: str) -> _Template:
        parts = PLACEHOLDER.split(message)[::2]
        return cls(message, max(parts, key=len), sum(map(len, parts)), len(re.findall("[A-Za-z]{2,}", " ".join(parts))))

    def values(self, text: str) -> tuple[str, ...] | None:
        matched = _pattern(self.message).fullmatch(text) if self.literal in text else None
        return None if matched is None else matched.groups()

    def holds(self, values: Sequence[str]) -> bool:
        """Whether the values are parts of a sentence; a list comes after a colon, or within a longer sentence."""
        listed = values if re.search(r": \{\d+\}\.?$", self.message) is None else values[:-1]
        first = [] if self.words < _LONG else [values[0]] * self.message.startswith("{0}")
        plain = values if self.words < _LONG else first
        return not (
            (not self.words and "" in values)
            or "," in values
            or any(re.search(r"[^.]\.$", value) for value in values)
            or any(SENTENCES.search(re.sub(r"\(.*\)", "", value)) for value in values)
            or any("; " in value for value in listed)
            or (self.words < _LONG and any(": " in value for value in listed))
            or any(", " in _LINE.sub("", value) for value in plain if value in listed)
            or (self.words == 1 and len(values) == 1 and self.message.startswith("{0} ") and " " in values[0])
        )


@cache
def _pattern(message: str) -> re.Pattern[str]:
    first, *parts = map(re.escape, PLACEHOLDER.split(message)[::2])
    # of values side by side, the first takes everything
    return re.compile(
        first + "".join(f"(.*{'?' * bool(part)}){part}" for part in (*parts[:-1], parts[-1] + "$")), re.DOTALL
    )


class _Catalogue(NamedTuple):
    exact: Mapping[str, str]
    templates: list[_Template]  # the most specific first


@cache
def catalogue(name: str) -> _Catalogue:
    messages = read_catalogue(Path(__file__).parent / "locale" / name / "LC_MESSAGES")
    templates = [_Template.of(message) for message in messages if PLACEHOLDER.search(message)]
    return _Catalogue(messages, sorted(templates, key=lambda one: (-one.size, one.message)))


_ENGLISH = r"(?<![\w'\"“./\\=-])[A-Za-z]?[a-z]{2,}(?![\w'\"”/\\=]|\.\w)"
SENTENCES = re.compile(r"(?<=[.?!])(?<! al\.)\s+(?=[^a-z\s]|attnscope )")
_ENDS = {".": "。", ":": ":", ",": "、", ";": "。", "?": "？"}
#: Marks between parts, and those of the translation. What counts things comes last.
_LISTS = (("; ", "。"), (", and ", "、"), (", ", "、"), (": ", ": "), (" and ", "と"))
#: A number with its interval before its unit, which in Japanese comes first.
_INTERVAL = re.compile(r"([−+-]?\d[\d.,]*%?) \(([^()]+ to [^()]+)\) ([A-Za-z]+)")
_NUMBERS = re.compile(r"([−+-]?\d(?:[\d.,]*\d)?%?) (.+)"), re.compile(r"(.+)( [−+-]?\d(?:[\d.,]*\d)?%?)")
_BETWEEN = re.compile("(?<=[\u3000-\u9fff\uff01-\uff5e]) (?=[\u3000-\u9fff\uff01-\uff5e])")  # two Japanese letters
#: An error of a library, as `attnscope.support.errors.explaining` quotes it. It stays as it is.
_EXPLAINED, _REASON = re.compile(r".+?: (“.+”)\. .+", re.DOTALL), "“1”"
_ENTRIES = re.compile(r"(?<![\w-])([Ww]indow|[Ii]mage|[Vv]ideo|[Ss]ound|[Pp]ool)(?=s?\b)")


#: A quotation, a name, an option, or a parameter with its option.
_TYPED = re.compile(r"'[^']*'$|[a-z0-9]+(_[a-z0-9]+)+$|(\w+ )?\(?--[a-z0-9-]+\)?$")


def translate(text: str) -> str:
    """The text in the chosen language: as it is without an entry, if all of it is quoted, or if it is typed so."""
    bare = "" if _TYPED.match(text) else text
    return text if _current == "en" or not re.search("[A-Za-z]", bare) else _translate(_current, text)


def fits(text: str, words: int = 2) -> bool:
    """Whether a text is a value, not a sentence in English: a number, a name, a quotation, or translated."""
    typed = r"“.*?”|'.*?'|\".*?\"|\battnscope (?:runs )?[a-z]+"  # quotations, and commands
    return re.search(_ENGLISH + rf"(?: {_ENGLISH})" * words, re.sub(typed, "", text)) is None


_UNIT = re.compile(r"\s+|[（「“(]*(?:[!-\u2e7f]+|\S)[、。）」：ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ]*")


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a text in Japanese, which has no spaces between words; a mark that ends a part begins none."""
    lines = [""]
    for unit in _UNIT.findall(text):
        if lines[-1].strip() and cell_len(lines[-1] + unit.rstrip()) > width:
            lines.append("")
        lines[-1] += unit if lines[-1] or len(lines) == 1 else unit.lstrip()
    return [line.rstrip() for line in lines]


@lru_cache(maxsize=1 << 16)
def _translate(name: str, text: str) -> str:
    core = text.strip()
    return text.replace(core, next(filter(None, _ways(name, core)), core), 1)


def _ways(name: str, text: str) -> Iterator[str | None]:
    """Translations of a text: as a whole message, then by its parts."""
    explained = _EXPLAINED.fullmatch(text)
    if explained and explained[1] != _REASON:
        yield translate(text.replace(explained[1], _REASON)).replace(_REASON, explained[1])
    yield _whole(name, text)
    message = text.removeprefix("attnscope: ")
    if message != text:
        yield f"attnscope: {translate(message)}"
    if text[-1:] in _ENDS and (begun := _whole(name, text[:-1])) is not None:
        yield begun + _ENDS[text[-1]]
    if text[:1] + text[-1:] == "()" and (inner := translate(text[1:-1])) != text[1:-1]:
        yield f"（{inner}）"
    noun = _ENTRIES.search(text)
    if noun:  # `of_entries` put it where a message has "text"
        about_texts = _whole(name, _ENTRIES.sub(lambda one: "Text" if one[0].istitle() else "text", text))
        yield about_texts and about_texts.replace(translate("texts"), translate(noun[0].lower()))
    if "\n" in text:
        yield "\n".join(map(translate, text.split("\n")))
    measured = _INTERVAL.fullmatch(text)
    if measured:
        yield f"{measured[1]} {translate(measured[3])}（{translate(measured[2])}）"
    begun = _before_remark(text)
    if begun is not None:
        remark = translate(text[len(begun) + 1 :])
        yield _joined(
            (begun, text[len(begun) + 1 :]), [translate(begun), remark if remark[0] == "（" else f" {remark}"]
        )
    sentences = SENTENCES.split(text)
    if len(sentences) > 1:
        yield re.sub(r"(?<=。) ", "", " ".join(map(translate, sentences)))
    if text[-1:] in _ENDS and (begun := translate(text[:-1])) != text[:-1]:
        yield begun + _ENDS[text[-1]]
    for between, joined in _LISTS:
        parts = text.split(between)
        others = (_whole(name, between + part) or joined + translate(part) for part in parts[1:])
        yield _joined(parts, [translate(parts[0]), *others] if parts[1:] else parts, joined)
    for form in _NUMBERS:
        number = form.fullmatch(text)
        if number:
            first, unit = map(translate, number.groups())
            space = " " if re.match("[A-Za-z]", unit) else ""  # as in 0.5 nat, but not before Japanese
            yield _joined(number.groups(), [first, space + unit])


def _before_remark(text: str) -> str | None:
    """The text before a remark in parentheses that ends it."""
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return text[: at - 1] if text[at : at + 1] == "(" and text[at - 1] == " " else None
    return None


def _joined(parts: Sequence[str], shown: Sequence[str], joined: str = "") -> str | None:
    """Translated parts, if at least one is translated and the others are values."""
    changed = any(one.removeprefix(joined).strip() != part.strip() for one, part in zip(shown, parts, strict=True))
    return "".join(shown) if changed and all(map(fits, shown)) else None


_NAMES = re.compile(r"[\w.-]+(?:, [\w.-]+)+")
_REMARKS = re.compile(r"not \w+ \(\{(\d+)\}\)")  # what a library says is wrong, in its words


def _is_typed(message: str, number: int, value: str) -> bool:
    """Whether a value is what people type, in every language: a command, or the names that were expected."""
    if f"attnscope {{{number}}}" in message:
        return True
    return (
        _NAMES.fullmatch(value) is not None
        and re.search(rf"\b(?:expected|choose|one of|fields|found are)\b.*\{{{number}\}}", message) is not None
    )


def _whole(name: str, text: str) -> str | None:
    """The translation of a whole message, with its values translated in turn."""
    exact, templates = catalogue(name)
    for written in (text, text[:1].lower() + text[1:], text[:1].upper() + text[1:]):
        if written in exact:
            return exact[written]
    small = text[:1].lower() + text[1:]
    # most texts have the literal of few templates
    for template in (one for one in templates if one.literal in text or one.literal in small):
        for written in dict.fromkeys((text, small)):
            values = template.values(written)
            if values is None or not template.holds(values):
                continue
            shown = [
                value if _is_typed(template.message, number, value) else translate(value).strip()
                for number, value in enumerate(values)
            ]
            if not template.words and shown == [*values]:  # but for its ending, as of a plural
                continue
            remarks = {int(number) for number in _REMARKS.findall(template.message)}
            plain = [value for number, value in enumerate(shown) if number not in remarks]
            if all(fits(value, min(2, template.words - 1)) for value in plain):
                filled = PLACEHOLDER.sub(lambda number: shown[int(number[1])], exact[template.message])  # noqa: B023
                return _BETWEEN.sub("", filled)
    return None


#: Elements within a sentence; all others begin and end one.
_INLINE = "a|abbr|b|bdi|code|em|i|kbd|strong|sub|sup"
_MARKUP = re.compile(
    rf"(<(script|style|pre|template)\b.*?</\2>|<!--.*?-->|</?(?!(?:{_INLINE})\b)[a-zA-Z!][^>]*>)", re.DOTALL
)
_TAG = re.compile(r"<[^>]*>")
_FULL_STOP = re.compile(r"(?<=[ぁ-ヿ一-龯」）])\.(?=\s|<|$)")  # after Japanese
_SHOWN = re.compile(r'\b(title|alt|aria-label)="([^"]*)"')


def translate_html(page: str) -> str:
    """A page with its texts and their descriptions translated, but for what is marked ``translate="no"``."""
    if _current == "en":
        return page
    pieces: list[str] = []
    end, fixed = 0, False
    for tag in _MARKUP.finditer(page):
        pieces += [page[end : tag.start()] if fixed else _run(page[end : tag.start()]), _described(tag[0], tag[2])]
        end, fixed = tag.end(), 'translate="no"' in tag[0]
    return "".join((*pieces, page[end:])).replace('<html lang="en">', f'<html lang="{_current}">', 1)


def _described(tag: str, opaque: str | None) -> str:
    return tag if opaque else _SHOWN.sub(lambda found: f'{found[1]}="{_unescaped(found[2], translate)}"', tag)


def _run(text: str) -> str:
    """A run of text with elements within the sentence: whole, without directions; else piece by piece."""
    text = _FULL_STOP.sub("。", text)
    core = " ".join(text.split())
    if not core or 'translate="no"' in core:
        return text
    claim = re.fullmatch(r"(<strong>[^<]*</strong>) (.+)", core)
    if claim:
        return _run(claim[1]) + _run(f" {claim[2]}")
    begin = re.match(r"(?:<[^>]*>\s*)*", core)
    end = re.search(r"(?:\s*</[^>]*>)*$", core)
    inner = core[begin.end() : end.start()] if begin and end else core
    sentence = re.sub(r"</?bdi>", "", inner)
    whole = _unescaped(sentence, translate) if not _TAG.search(sentence) else translate(sentence)
    if whole == sentence and _TAG.search(inner):
        whole = re.sub(r"[^<>]+(?=<|$)", lambda piece: _unescaped(piece[0], translate), inner)
    return (
        text
        if whole == inner
        else re.sub(r"\S(?:.*\S)?", lambda _: core.replace(inner, whole), text, count=1, flags=re.DOTALL)
    )


def _unescaped(text: str, change: Callable[[str], str]) -> str:
    plain = html.unescape(text)
    changed = change(plain)
    return text if changed == plain else html.escape(changed)


def translate_data(data: Any, names: frozenset[str], shown: bool = False) -> Any:
    """The data of a page's script, with the words under some names translated."""
    if isinstance(data, dict):
        return {name: translate_data(value, names, name in names) for name, value in data.items()}
    if isinstance(data, list):
        return [translate_data(value, names, shown) for value in data]
    return translate(data) if shown and isinstance(data, str) else data


_TAGGED = re.compile(r"\bt`((?:[^`\\]|\\.)*)`")
_VALUE = re.compile(r"\$\{((?:[^{}]|\{[^{}]*\})*)\}")


def messages_of_script(script: str) -> list[str]:
    """The messages of a page's script: its templates that are tagged t, their values numbered."""
    return [numbered(_VALUE.split(text)[::2]) for text in _TAGGED.findall(script)]


def numbered(parts: list[str]) -> str:
    """Parts of a message with numbered values between them."""
    return parts[0] + "".join(f"{{{number}}}{part}" for number, part in enumerate(parts[1:]))
