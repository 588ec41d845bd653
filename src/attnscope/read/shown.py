"""The display of tokens: the characters of each, split characters, and beginnings of words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import chain, pairwise
from typing import Any, overload

import numpy as np
from jaxtyping import Int

from attnscope.support.errors import explaining

SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
MARKS = "▁Ġ"  # a space in SentencePiece and byte-level BPE
SPACE_MARKS = frozenset(MARKS)
BYTES = 4  # of a character in UTF-8, at most
UNKNOWN = "\ufffd"  # a decoded piece of a character


class ShownTokens(Sequence[str]):
    """Displayed tokens, made when one is first asked for: most windows are measured and not shown."""

    def __init__(self, make: Callable[[], Iterable[str]]) -> None:
        self._make = make

    @cached_property
    def _tokens(self) -> tuple[str, ...]:
        return tuple(self._make())

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tokens)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._tokens[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._tokens == tuple(other)

    def __hash__(self) -> int:
        return hash(self._tokens)


class Spans(Sequence[tuple[int, int]]):
    """First character of each token and one past its last: an array, which gives pairs."""

    def __init__(self, ends: Int[np.ndarray, "token 2"]) -> None:
        self.ends = ends

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]]) -> "Spans":
        """From pairs."""
        ends = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs))
        return cls(ends.reshape(-1, 2))

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(tuple, self.ends.tolist())

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> "Spans": ...
    def __getitem__(self, index: int | slice) -> "tuple[int, int] | Spans":
        if isinstance(index, slice):
            return Spans(self.ends[index])
        start, end = self.ends[index].tolist()
        return start, end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Spans):
            return np.array_equal(self.ends, other.ends)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def shown_tokens(
    text: str, names: Sequence[str], spans: Sequence[tuple[int, int]], written: frozenset[str] = frozenset()
) -> list[str]:
    """The characters of each token; shared characters are numbered."""
    numbered = _Numbered(text, spans)
    tokens: list[str] = []
    repeated: dict[tuple[str, str, str, bool], str] = {}  # most tokens of a text repeat
    reached, follows = 0, True
    for name, (start, end) in zip(names, spans, strict=True):
        before, covered = text[reached:start], text[start:end]
        key = (name, covered, before, follows)
        if not numbered.shared.isdisjoint(range(start, end)):
            tokens.append(_shown(name, covered, before, numbered.characters(start, end), written, follows=follows))
        else:
            if key not in repeated:
                repeated[key] = _shown(name, covered, before, covered, written, follows=follows)
            tokens.append(repeated[key])
        reached, follows = max(reached, end), name.strip(MARKS) != ""
    return tokens


def _shown(name: str, covered: str, before: str, characters: str, written: frozenset[str], *, follows: bool) -> str:
    """One token with possibly numbered characters, and the text `before` it that the tokenizer dropped."""
    # an empty span is a space that the tokenizer split off or added
    shown = characters or before or " "
    left_out = follows and before[-1:].isspace()
    begins = (left_out or marked(name, covered)) and not (covered == name and name in written)
    return visible_start(f" {shown}" if covered and begins and not shown[0].isspace() else shown)


class _Numbered:
    """The characters of spans in order, with numbers on characters that several spans share."""

    def __init__(self, text: str, spans: Sequence[tuple[int, int]]) -> None:
        self.text = text
        self.shared = set[int]()  # characters that more than one span covers: nearly always none
        if any(start < end for (_, end), (start, _) in pairwise(spans)):
            covered = Counter(position for start, end in spans for position in range(start, end))
            self.shared = {position for position, spans_there in covered.items() if spans_there > 1}
        self.seen: Counter[int] = Counter()

    def characters(self, start: int, end: int) -> str:
        return "".join(map(self._character, range(start, end)))

    def _character(self, place: int) -> str:
        if place not in self.shared:
            return self.text[place]
        self.seen[place] += 1
        return self.text[place] + str(self.seen[place]).translate(SUBSCRIPTS)


class IdNames:
    """The display of token ids without a text: each token separately, pieces of a character together."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._special = tokenizer, frozenset(tokenizer.all_special_ids)
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, ids: Sequence[int]) -> tuple[str, ...]:
        """One string for each."""
        return tuple(map(visible_start, [piece for whole in self.wholes(ids) for piece in self._pieces(whole)]))

    def wholes(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """The tokens one at a time, with the pieces of a character together."""
        at = 0
        while at < len(ids):
            counts = range(1, 1 + min(len(ids) - at, BYTES))
            count = next((count for count in counts if self._is_whole(ids[at : at + count])), 1)
            yield ids[at : at + count]
            at += count

    def forms(self, ids: Sequence[int]) -> list[str]:
        """The text of some tokens: decoded, or their name without marks."""
        name = str(self._tokenizer.convert_ids_to_tokens(ids[0]))
        bare = name.lstrip(MARKS).removeprefix("##").removesuffix("</w>").removesuffix("@@")
        decoded = self._decoded(ids)
        return [decoded, decoded.strip(), *([bare] if len(ids) == 1 and len(name) > 1 else [])]

    def _is_whole(self, ids: Sequence[int]) -> bool:
        if ids[-1] in self._special:  # never a piece of a character
            return len(ids) == 1
        if self._decoded(ids) == "":
            name = str(self._tokenizer.convert_ids_to_tokens(ids[-1]))
            return len(name) > 1 or name in SPACE_MARKS  # else it is a byte
        return UNKNOWN not in self._decoded(ids)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        names: list[Any] = self._tokenizer.convert_ids_to_tokens(list(ids))
        if names[0] is None:  # a model may have more tokens than its tokenizer
            return [f"<{ids[0]}>"]
        text = self._decoded(ids)
        if ids[-1] in self._special:
            return names[:1]
        if UNKNOWN in text:
            return [_in_bytes(names[0])]
        space = " " if names[0][:1] in SPACE_MARKS else text[: len(text) - len(text.lstrip(" "))]
        core = text.lstrip(" ").removeprefix(names[0][:1] if space else "")
        if len(ids) == 1:
            return [space + core]
        numbers = (str(number).translate(SUBSCRIPTS) for number in range(1, len(ids) + 1))
        return [f"{space if i == 0 else ''}{core}{number}" for i, number in enumerate(numbers)]

    def _decoded(self, ids: Sequence[int]) -> str:
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = self._tokenizer.decode(list(key), clean_up_tokenization_spaces=False)
        return self._known[key]


_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
#: The letters by which byte-level BPE writes bytes (GPT-2).
_BYTE_OF = {chr(byte): byte for byte in _PRINTED} | {chr(256 + i): byte for i, byte in enumerate(_HIDDEN)}
_BAD = 0xDC00  # what `surrogateescape` adds to a byte that is no UTF-8


def _in_bytes(name: str) -> str:
    """A piece of a character of byte-level BPE by its bytes, such as ``<0xE7>``; another name as it is."""
    if any(letter not in _BYTE_OF for letter in name) or name.startswith("<0x"):
        return name
    text = bytes(_BYTE_OF[letter] for letter in name).decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(letter) - _BAD:02X}>" if ord(letter) > _BAD else letter for letter in text)


def marked(name: str, covered: str) -> bool:
    """Whether a token's name begins with a mark for a space."""
    return name[:1] in SPACE_MARKS and covered[:1] != name[:1]


def split_character(tokens: Sequence[str]) -> tuple[str, ...]:
    """The displayed pieces of the first character that is split into several tokens; empty without one."""
    for i, token in enumerate(tokens):
        pieces: list[str] = []
        for later in tokens[i:]:
            piece = token[-2:-1] + str(len(pieces) + 1).translate(SUBSCRIPTS)
            if len(piece) == 1 or not later.endswith(piece):
                break
            pieces.append(piece)
        if len(pieces) > 1:
            return tuple(pieces)
    return ()


def visible_start(shown: str) -> str:
    """Put a combining character on a dotted circle."""
    first = shown.lstrip(" ")[:1]
    if first.isascii():
        return shown
    joins = first != "" and unicodedata.category(first) in {"Mn", "Mc", "Me", "Cf"}
    return shown.replace(first, f"◌{first}", 1) if joins else shown


PIECE = 100_000  # characters of a piece of a long text, at least
MARGIN = 256  # characters read on both sides of a piece, so that its tokens are those of the whole text
LONGEST = 1 << 18  # characters of a piece, at most: a longer line is cut between words, or anywhere
CUT = re.compile(r"[\n\r](?=[^\S\n\r]{0,32}\S)")  # before a line with something on it
GAP = re.compile(r"\s(?=\S)")
_BARE = {"add_special_tokens": False, "padding": False, "truncation": False, "verbose": False}
_BLANK = re.compile(r"\s*")
_UNKNOWN_WORD = re.compile(r"\s*(\w+|\S)")  # the text of an unknown token


@dataclass(frozen=True, eq=False)
class Tokens:
    """Consecutive tokens of a text, without special tokens around them."""

    ids: Sequence[int]
    spans: Spans  # in the text
    special: Sequence[bool]
    shown: Sequence[str]
    is_aligned: bool = True  # otherwise `spans` count tokens, as the characters are unknown

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> "Tokens":
        shown = ShownTokens(lambda: self.shown[part])
        return Tokens(self.ids[part], self.spans[part], self.special[part], shown, self.is_aligned)

    def __add__(self, after: "Tokens") -> "Tokens":
        shown = ShownTokens(lambda: (*self.shown, *after.shown))
        ids, special = (*self.ids, *after.ids), (*self.special, *after.special)
        spans = Spans(np.concatenate([self.spans.ends, after.spans.ends]))
        return Tokens(ids, spans, special, shown, self.is_aligned)


def tokenize(tokenizer: Any, text: str) -> Iterator[Tokens]:
    """The tokens of a text, without special tokens around them, piece by piece."""
    if not is_fast(tokenizer):
        yield _tokenize_in_python(tokenizer, text)
        return
    begin = 0
    while begin < len(text):
        # where the piece of a text that begins there ends
        last = begin + LONGEST
        cut = CUT.search(text, begin + PIECE - 1, last)
        if not cut and last < len(text):
            cut = GAP.search(text, begin + PIECE - 1, last)
        end = cut.end() if cut else min(last, len(text))
        offset = max(0, begin - MARGIN)
        tokens = _tokenize_piece(tokenizer, text[offset : end + MARGIN], offset)
        first, after = np.searchsorted(tokens.spans.ends[:, 0], [begin, end]).tolist()
        yield tokens[first : len(tokens) if end == len(text) else after]
        begin = end


def tokens_of(tokenizer: Any, text: str) -> Tokens:
    """All tokens of a text that is not empty, without special tokens around them."""
    return reduce(Tokens.__add__, tokenize(tokenizer, text))


def is_fast(tokenizer: Any) -> bool:
    """Whether a tokenizer returns character offsets."""
    return getattr(tokenizer, "is_fast", False)


def _tokenize_piece(tokenizer: Any, text: str, offset: int) -> Tokens:
    with explaining("the tokenizer fails on a text", "Check that its tokenizer.json is complete and the right one"):
        encoded = tokenizer(text, return_offsets_mapping=True, return_attention_mask=False, **_BARE)
    ids: list[int] = encoded["input_ids"]
    spans = Spans.of(encoded["offset_mapping"])
    marks = [tokenizer.convert_tokens_to_ids(mark) for mark in MARKS]  # or the unknown token
    places = [] if {*marks}.isdisjoint(ids) else np.flatnonzero(np.isin(ids, marks)).tolist()
    added = added_spaces(text, lambda at: tokenizer.convert_ids_to_tokens(ids[at]), spans, places)
    spans.ends[added, 1] = spans.ends[added, 0]
    show = partial(_shown_by_characters, tokenizer, text, ids, spans)
    return _named(tokenizer, ids, Spans(spans.ends + offset), show)


def _tokenize_in_python(tokenizer: Any, text: str) -> Tokens:
    """Tokens of a tokenizer without character offsets, which are found by decoding consecutive tokens."""
    with explaining("the tokenizer fails on a text", "Check that its files are complete and the right ones"):
        ids: list[int] = tokenizer(text, **_BARE)["input_ids"]
    spans = _aligned(tokenizer, text, ids)
    if spans is not None:
        return _named(tokenizer, ids, Spans.of(spans), partial(_shown_by_characters, tokenizer, text, ids, spans))
    places = list(pairwise(range(len(ids) + 1)))
    return _named(tokenizer, ids, Spans.of(places), partial(IdNames(tokenizer).of, ids), is_aligned=False)


def _named(
    tokenizer: Any, ids: Sequence[int], spans: Spans, show: Callable[[], Iterable[str]], *, is_aligned: bool = True
) -> Tokens:
    special = [*map(special_ids(tokenizer).__contains__, ids)]
    return Tokens(ids, spans, special, ShownTokens(show), is_aligned)


def _shown_by_characters(tokenizer: Any, text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[str]:
    names: list[str] = tokenizer.convert_ids_to_tokens(ids)
    return shown_tokens(text, names, spans, frozenset(tokenizer.all_special_tokens))


def _aligned(tokenizer: Any, text: str, ids: Sequence[int]) -> list[tuple[int, int]] | None:
    """The characters of each token; None if the decoded and folded tokens differ from the text."""
    folded = [_folded(letter) for letter in text]
    origin = [position for position, letters in enumerate(folded) for _ in letters]
    plain, at = "".join(folded), 0
    names = IdNames(tokenizer)
    spans: list[tuple[int, int]] = []
    for whole in names.wholes(ids):
        if whole[0] == tokenizer.unk_token_id:
            word = _UNKNOWN_WORD.match(plain, at)
            start, end = word.span(1) if word else (0, 0)
        else:
            forms = [_folded(form) for form in names.forms(whole)]
            skipped = _BLANK.match(plain, at).end()  # pyright: ignore[reportOptionalMemberAccess] it may be empty
            fits = (
                (position, form)
                for form in forms
                for position in (at, skipped)
                if form and plain.startswith(form, position)
            )
            start, form = next(fits, (at, ""))
            if not form and any(forms):
                return None
            end = start + len(form)
        if end > len(plain) or (end == 0 and whole[0] == tokenizer.unk_token_id):
            return None
        first = origin[start] if start < len(origin) else len(text)
        spans += [(first, origin[end - 1] + 1 if end > start else first)] * len(whole)
        at = end
    return None if plain[at:].strip() else spans


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def special_ids(tokenizer: Any) -> set[int]:
    """Special tokens without text; unknown and mask tokens replace text."""
    ids = {getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")}
    if tokenizer.pad_token_id != tokenizer.unk_token_id:
        ids.add(tokenizer.pad_token_id)
    return ids - {None}


def probe(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Tokens of a short text, with a 1 for each that the tokenizer added around it."""
    text = "a A 1"
    if is_fast(tokenizer):
        tried = tokenizer(text, return_special_tokens_mask=True, padding=False, truncation=False)
        return tried["input_ids"], tried["special_tokens_mask"]
    whole, bare = (tokenizer(text, add_special_tokens=around)["input_ids"] for around in (True, False))
    starts = (start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
    start = next(starts, 0)
    inside = range(start, start + len(bare))
    return whole, [int(position not in inside) for position in range(len(whole))]


def added_spaces(
    text: str, name_of: Callable[[int], str], spans: Sequence[tuple[int, int]], places: Iterable[int]
) -> list[int]:
    """Which of these tokens are added spaces that the tokenizer assigned to a word's first character."""
    added: list[int] = []
    for at in places:
        name = name_of(at)
        if name not in SPACE_MARKS or at + 1 == len(spans):
            continue
        start, end = spans[at]
        covered = text[start:end]
        shared = spans[at + 1][0] == start
        if shared and covered != name and (name_of(at + 1)[:1] in SPACE_MARKS or not covered.isspace()):
            added.append(at)
    return added
