"""The tokens of a text, with the characters behind each."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from attnscope.corpus._shown import SPACE_MARKS, shown_tokens
from attnscope.errors import explaining

PIECE = 100_000  # characters of a long text that are tokenized at once, at least
MARGIN = 256  # characters read on both sides of a piece, so that its tokens are those of the whole text
LONGEST = 1 << 18  # characters of a piece, at most: a line that is longer is cut between words, or anywhere
CUT = re.compile(r"[\n\r](?=[^\S\n\r]{0,32}\S)")  # before a line with something on it
GAP = re.compile(r"\s(?=\S)")


class Token(NamedTuple):
    """A token of a text; `start` and `end` are characters of the text."""

    id: int
    start: int
    end: int
    shown: str
    special: bool


def tokenize(tokenizer: Any, text: str) -> Iterator[Token]:
    """The tokens of a text, without special tokens around them, piece by piece."""
    begin = 0
    while begin < len(text):
        end = _end(text, begin)
        offset = max(0, begin - MARGIN)
        for token in _tokenize_piece(tokenizer, text[offset : end + MARGIN], offset):
            if begin <= token.start < end or (token.start == end == len(text)):
                yield token
        begin = end


def _end(text: str, begin: int) -> int:
    """Where the piece of a text that begins there ends."""
    last = begin + LONGEST
    cut = CUT.search(text, begin + PIECE - 1, last)
    if not cut and last < len(text):
        cut = GAP.search(text, begin + PIECE - 1, last)
    return cut.end() if cut else min(last, len(text))


def _tokenize_piece(tokenizer: Any, text: str, offset: int) -> Iterator[Token]:
    with explaining("the tokenizer fails on a text", "Is its tokenizer.json whole, and the right one?"):
        encoded = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            padding=False,
            truncation=False,
            verbose=False,
        )
    ids: list[int] = encoded["input_ids"]
    names: list[str] = tokenizer.convert_ids_to_tokens(ids)
    spans = without_added_spaces(text, names, [tuple(span) for span in encoded["offset_mapping"]])
    special = special_ids(tokenizer)
    written = frozenset(tokenizer.all_special_tokens)
    for token, (start, end), shown in zip(ids, spans, shown_tokens(text, names, spans, written), strict=True):
        yield Token(token, start + offset, end + offset, shown, token in special)


def special_ids(tokenizer: Any) -> set[int]:
    """Tokens that stand for no text; unknown and mask tokens stand for some."""
    names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    ids = {getattr(tokenizer, name) for name in names}
    if tokenizer.pad_token_id != tokenizer.unk_token_id:
        ids.add(tokenizer.pad_token_id)
    return ids - {None}


def probe(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Tokens of a short text, and of each a 1 where the tokenizer put it around the text."""
    tried = tokenizer("a A 1", return_special_tokens_mask=True, padding=False, truncation=False)
    return tried["input_ids"], tried["special_tokens_mask"]


def without_added_spaces(
    text: str, names: Sequence[str], spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Empty the span of a space that the tokenizer put before a word and gave the word's first character.

    Where the text has a space of its own there, that one is the next token's: it begins with a mark too.
    """
    result = [*spans]
    for i, name in enumerate(names[:-1]):
        if name not in SPACE_MARKS:
            continue
        start, end = spans[i]
        covered = text[start:end]
        shared = spans[i + 1][0] == start
        if shared and covered != name and (names[i + 1][:1] in SPACE_MARKS or not covered.isspace()):
            result[i] = (start, start)
    return result
