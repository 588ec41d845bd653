"""Times of words next to sounds: TextGrid (Praat, Montreal Forced Aligner), CTM, JSON; and their transcripts."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from attnscope.read.files import read_bytes, shown
from attnscope.read.spans import Span
from attnscope.support.errors import AttnscopeError

_SPACELESS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # scripts without spaces
_QUIET = {"", "sil", "sp", "spn", "<sil>", "<eps>", "<unk>", "[noise]", "<s>", "</s>"}  # intervals that are no words


@dataclass(frozen=True)
class TimedWord:
    """A word and its time in a sound, in seconds."""

    word: str
    begin: float
    end: float


@dataclass(frozen=True)
class Said:
    """The words in a sound: the text, and the characters and times of its words, if there are any."""

    text: str
    words: tuple[Span, ...] = ()
    times: tuple[tuple[float, float], ...] = ()


def said_in(sound: Path | None, name: str) -> Said:
    """The transcript of a sound and the times of its words, from the files next to it."""
    around = {} if sound is None else {ending: sound.with_suffix(ending) for ending in (".txt", *READERS)}
    present = [ending for ending, path in around.items() if ending in READERS and path.is_file()]
    if len(present) > 1:
        raise AttnscopeError(f"{name} has times in {' and '.join(present)} next to it: leave one of them")
    written = around[".txt"] if around and around[".txt"].is_file() else None
    text = None if written is None else " ".join(_decoded(written).split())
    if not present:
        if not text:
            raise AttnscopeError(
                f"{name} has neither times of its words next to it ({', '.join(READERS)}) nor a transcript (.txt): add "
                "one of them, or remove the sound"
            )
        return Said(text)
    file = around[present[0]]
    words = [word for word in READERS[present[0]](_decoded(file), file) if word.word.lower() not in _QUIET]
    if not words:
        raise AttnscopeError(f"{shown(file)} has no word with times")
    for word, after in zip(words, [*words[1:], None], strict=True):
        if not 0 <= word.begin < word.end or (after is not None and after.begin < word.begin):
            raise AttnscopeError(
                f"{shown(file)}: {word.word!r:.40} lasts from {word.begin:g} to {word.end:g} s; expected times in "
                "order, in seconds"
            )
    text = text or _joined([word.word for word in words])
    spans = _in_text([word.word for word in words], text, file)
    return Said(text, tuple(spans), tuple((word.begin, word.end) for word in words))


def _decoded(file: Path) -> str:
    """A text in UTF-8, or as Praat writes it: UTF-16 with a byte order mark."""
    data = read_bytes(file)
    try:
        return data.decode("utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttnscopeError(f"{shown(file)} is neither UTF-8 nor UTF-16: convert it") from error


def _joined(words: Sequence[str]) -> str:
    """A transcript of these words; without spaces in scripts that have none."""
    letters = [letter for word in words for letter in word if letter.isalpha()]
    spaceless = [letter for letter in letters if unicodedata.name(letter, "").startswith(_SPACELESS)]
    return ("" if 2 * len(spaceless) > len(letters) else " ").join(words)


def _in_text(words: Sequence[str], text: str, file: Path) -> list[Span]:
    """The characters of each word: where it is written, or the word of that number between spaces."""
    spans: list[Span] = []
    end, folded = 0, text.lower()
    for word in words:
        start = folded.find(word.lower(), end) if len(folded) == len(text) else -1
        if start < 0 or any(letter.isalnum() for letter in text[end:start]):
            break
        end = start + len(word)
        spans.append((start, end))
    if len(spans) == len(words) and not any(letter.isalnum() for letter in text[end:]):
        return spans
    written = [match.span() for match in re.finditer(r"\S+", text) if any(map(str.isalnum, match[0]))]
    if len(written) != len(words):
        raise AttnscopeError(
            f"{shown(file)} has {len(words)} words and the transcript (.txt) {len(written)}; the transcript does not "
            f"go on with {words[len(spans)] if len(spans) < len(words) else words[-1]!r:.40}. Correct one of them, or "
            "remove the transcript"
        )
    return written


_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|<exists>|<absent>)(?!\S)')


def _text_grid(text: str, file: Path) -> Iterator[TimedWord]:
    """The intervals of the tier of words, in Praat's long or short form: both have the same values in one order."""
    found = [match[2] or match[1].replace('""', '"') for match in _VALUE.finditer(text)]
    tiers: dict[str, list[TimedWord]] = {}
    header, values = found[:2], iter(found[5:])  # after the times of the whole, and a sign that there are tiers
    try:
        for _ in range(int(next(values))):
            kind, name, _, _, size = (next(values) for _ in range(5))
            if kind != "IntervalTier":
                _ = [next(values) for _ in range(2 * int(size))]
                continue
            rows = [(float(next(values)), float(next(values)), next(values).strip()) for _ in range(int(size))]
            tiers[name] = [TimedWord(word, begin, end) for begin, end, word in rows]
    except (ValueError, StopIteration) as error:
        raise AttnscopeError(f"{shown(file)} is not a TextGrid as Praat writes it") from error
    if header != ["ooTextFile", "TextGrid"]:
        raise AttnscopeError(f"{shown(file)} is not a TextGrid: its header is {header!r:.60}")
    named = [name for name in tiers if name.lower().strip().endswith(("words", "word"))]
    chosen = named or ([*tiers] if len(tiers) == 1 else [])
    if len(chosen) != 1:
        raise AttnscopeError(
            f"{shown(file)} has {len(chosen)} tiers of words among {', '.join(tiers) or 'none'}; expected one named "
            "words, or a single tier of intervals"
        )
    yield from tiers[chosen[0]]


def _ctm(text: str, file: Path) -> Iterator[TimedWord]:
    """Lines of recording, channel, begin, duration and word."""
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or line.startswith(";;"):
            continue
        try:
            begin, duration, word = float(parts[2]), float(parts[3]), parts[4]
        except (ValueError, IndexError) as error:
            raise AttnscopeError(
                f"{shown(file)}, line {number}: found {line!r:.60}; expected recording, channel, begin, duration, word"
            ) from error
        yield TimedWord(word, begin, begin + duration)


_NAMES = (("word", "text", "t"), ("begin", "start", "b"), ("end", "e"), ("duration", "d"))
_FORM = '[{"word": "tide", "begin": 0.31, "end": 0.62}]'


def _json(text: str, file: Path) -> Iterator[TimedWord]:
    """Objects with word, begin, and end or duration: a list, or under words; or the segments of a transcription."""
    try:
        whole: Any = json.loads(text)
        yield from map(_of_object, _objects(whole))
    except (ValueError, TypeError, KeyError) as error:
        raise AttnscopeError(f"{shown(file)} has no times of words ({error}); expected {_FORM}") from error


def _objects(whole: Any) -> list[Mapping[str, Any]]:
    if isinstance(whole, list):
        return cast("list[Mapping[str, Any]]", whole)
    for name in ("words", "w"):
        if name in whole:
            return whole[name]
    return [word for segment in whole["segments"] for word in _objects(segment)]


def _of_object(value: Mapping[str, Any]) -> TimedWord:
    values: list[Any] = [next((value[name] for name in names if name in value), None) for names in _NAMES]
    word, begin, end, duration = values
    if word is None or begin is None or (end is None and duration is None):
        raise ValueError(f"{json.dumps(value):.60} lacks a word, its begin or its end")
    said = re.sub(r"\(\d+\)$", "", str(word).strip())  # the number of a pronunciation
    return TimedWord(said, float(begin), float(end) if end is not None else float(begin) + float(duration))


#: Readers of times of words, by the ending of the file next to a sound.
READERS: dict[str, Callable[[str, Path], Iterator[TimedWord]]] = {".TextGrid": _text_grid, ".ctm": _ctm, ".json": _json}
