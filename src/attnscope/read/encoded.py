"""Texts that are token ids already, as a tokenizer or a data set gives them."""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from numbers import Integral, Number
from typing import Any, cast

from attnscope.read.chats import ChatTexts, ChatWindows
from attnscope.read.files import is_standard_input
from attnscope.read.shown import IdNames, probe, special_ids
from attnscope.read.sources import as_list, kind
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window, Windows, check_limit, cut_windows
from attnscope.support.errors import AttnscopeError

#: What texts are given as: strings are texts, paths are files or folders, one stands for a list of one, and None for
#: the bundled sample; or token ids.
Sources = object

_BESIDE = frozenset(  # what else a tokenizer gives, and no forward pass takes
    ["input_ids", "attention_mask", "special_tokens_mask", "offset_mapping", "length", "labels"]
)


class EncodedTexts:
    """Texts that are token ids already: each row is one window as it stands."""

    def __init__(self, given: Any) -> None:
        named: Mapping[str, Any] = given if isinstance(given, Mapping) else {"input_ids": given}
        _check_beside(named)
        self.rows = [_row(row, number) for number, row in enumerate(_rows(named["input_ids"]), start=1)]
        masks = named.get("attention_mask")
        self._masked = masks is not None
        if masks is not None:
            self.rows = _unpadded(self.rows, _rows(masks))
        if not self.rows:
            raise AttnscopeError("no text: found no token ids at all; expected at least one row of them")

    def characters(self) -> int:
        """How long all texts are: without characters, in tokens."""
        return sum(map(len, self.rows))

    def sha256(self) -> str:
        """Hash all ids: 64 hexadecimal digits."""
        digest = hashlib.sha256(b"token ids")
        for row in self.rows:
            digest.update(len(row).to_bytes(8, "big") + array("q", row).tobytes())
        return digest.hexdigest()

    def windows(self, tokenizer: Any, *, length: int, limit: int | None = None) -> list[Window]:
        """Each row as a window."""
        check_limit(limit)
        rows = self.rows[:limit]
        for number, row in enumerate(rows, start=1):
            _check_row(row, f"text {number}", tokenizer, length)
            if not self._masked:
                _check_padding(row, f"text {number}", tokenizer)
        names = IdNames(tokenizer)
        special = special_ids(tokenizer) | {token for token, around in zip(*probe(tokenizer), strict=True) if around}
        return [
            Window(
                ids=row,
                special=tuple(token in special for token in row),
                spans=tuple((place, place + 1) for place in range(len(row))),
                source=f"text {number}",
                start=0,
                tokens=names.of(row),
            )
            for number, row in enumerate(rows, start=1)
        ]


#: What windows are made of.
Texts = Corpus | EncodedTexts


def texts_of(given: Sources, **options: Any) -> Texts:
    """Take texts in whatever form they are given."""
    given = as_list(given)
    if not _are_token_ids(given):
        return Corpus.from_sources(given, **options)
    for name in ("field", "by"):
        if options.get(name) is not None:
            raise AttnscopeError(f"the texts are token ids, and have no field: leave it out (--{name})")
    return EncodedTexts(given)


def texts_and_targets(texts: Sources, targets: Sources, **options: Any) -> tuple[Texts, Corpus | None]:
    """Take texts and, where there are some, their translations."""
    read = texts_of(texts, **options)
    if targets is None:
        return read, None
    if texts is None:
        raise AttnscopeError("a target is given and no text that it translates: give the source text too")
    target = texts_of(targets, **options)
    if isinstance(read, EncodedTexts) or isinstance(target, EncodedTexts):
        raise AttnscopeError("found token ids beside a target; expected text on both sides: give strings or files")
    if all(any(map(is_standard_input, side.streams)) for side in (read, target)):
        raise AttnscopeError("standard input (-) can be the text or the target, not both: name a file for one")
    return read, target


def windows_of(
    texts: Texts | ChatTexts, tokenizer: Any, *, length: int, stride: int | None = None, limit: int | None = None
) -> Windows | ChatWindows | list[Window]:
    """Windows of texts in whatever form they were given."""
    if isinstance(texts, Corpus):
        return cut_windows(texts, tokenizer, length=length, stride=stride, limit=limit)
    if isinstance(texts, ChatTexts):
        return texts.windows(length=length, stride=stride, limit=limit)
    if stride is not None:
        raise AttnscopeError("stride is of windows in running text; token ids are windows already: leave it out")
    return texts.windows(tokenizer, length=length, limit=limit)


def _are_token_ids(given: Any) -> bool:
    """Whether whole numbers are given, or rows that begin with a number; `given` is what `as_list` returns."""
    if isinstance(given, Mapping):
        return "input_ids" in given
    if not isinstance(given, list) or not given:
        return False
    first: Any = _plain(cast("list[Any]", given)[0])
    if not isinstance(first, list | tuple):
        return isinstance(first, Integral)
    while isinstance(first, list | tuple) and first:
        first = _plain(cast("Sequence[Any]", first)[0])
    return isinstance(first, Number | list | tuple)


def _plain(value: Any) -> Any:
    """A tensor or an array as Python's own numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _rows(given: Any) -> list[Sequence[Any]]:
    """Some items for each text; numbers alone are one text."""
    many = as_list(given)
    if not isinstance(many, list):
        raise AttnscopeError(f"the token ids are {kind(given)}; expected a tensor, or lists of whole numbers")
    rows: list[Any] = [_plain(row) for row in cast("list[Any]", many)]
    rows = [rows] if rows and isinstance(rows[0], Number) else rows
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list | tuple):
            raise AttnscopeError(f"text {number} is {kind(row)}; expected token ids, as in the others")
    return rows


def _row(items: Sequence[Any], number: int) -> tuple[int, ...]:
    if not items:
        raise AttnscopeError(f"text {number} has no token: leave it out")
    row: list[Any] = [_plain(token) for token in items]
    for token in row:
        if isinstance(token, bool) or not isinstance(token, Integral) or int(token) < 0:
            raise AttnscopeError(
                f"text {number} holds {token!r:.60}; expected token ids, which are whole numbers from 0, in one row"
            )
    return tuple(map(int, row))


def _check_beside(given: Mapping[str, Any]) -> None:
    """Other inputs of a model would change what it does, and are not read."""
    for name in given.keys() - _BESIDE:
        zeros = name == "token_type_ids" and not any(_plain(token) for row in _rows(given[name]) for token in row)
        if not zeros:
            raise AttnscopeError(
                f"found {name!r} beside the token ids; only input_ids and attention_mask are read: leave it out if "
                "the numbers shall be those without it"
            )


def _unpadded(rows: list[tuple[int, ...]], masks: list[Sequence[Any]]) -> list[tuple[int, ...]]:
    if len(masks) != len(rows):
        raise AttnscopeError(
            f"found {len(rows)} texts and {len(masks)} rows of attention_mask; expected as many: give what the "
            "tokenizer returns"
        )
    numbered = enumerate(zip(rows, masks, strict=True), start=1)
    return [_unmasked(row, mask, number) for number, (row, mask) in numbered]


def _unmasked(row: tuple[int, ...], items: Sequence[Any], number: int) -> tuple[int, ...]:
    """The tokens that are no padding."""
    mask = [_plain(item) for item in items]
    ones = [place for place, item in enumerate(mask) if item == 1]
    if len(mask) != len(row) or len(ones) + mask.count(0) != len(mask):
        raise AttnscopeError(f"the attention_mask of text {number} does not fit; expected a 0 or 1 for each token")
    if not ones or ones != list(range(ones[0], ones[-1] + 1)):
        raise AttnscopeError(
            f"the attention_mask of text {number} leaves out tokens between others, or all; expected it to leave out "
            "padding at the ends"
        )
    return row[ones[0] : ones[-1] + 1]


def _check_row(row: tuple[int, ...], name: str, tokenizer: Any, length: int) -> None:
    if len(row) > length:
        raise AttnscopeError(
            f"{name} has {len(row)} tokens, and a window takes {length}: cut it, or give a larger window (--window) "
            "where the model can take it"
        )
    if max(row) >= len(tokenizer):
        raise AttnscopeError(
            f"{name} has token id {max(row)}, but the tokenizer knows {len(tokenizer)} tokens: they do not belong "
            "together"
        )


def _check_padding(row: tuple[int, ...], name: str, tokenizer: Any) -> None:
    """Padding without a mask would be measured as text."""
    pad = tokenizer.pad_token_id
    if pad is None or pad == tokenizer.unk_token_id:
        return
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id}
    most = 1 if pad in ends else 0  # a token that also marks an end is there once
    if any(len(end) > most and set(end) == {pad} for end in (row[: most + 1], row[-most - 1 :])):
        raise AttnscopeError(
            f"{name} has padding tokens at an end, and no attention_mask that says so: give all that the tokenizer "
            "returns, or rows without padding"
        )
