"""Texts as token ids, from a tokenizer, a packing collator or `generate`."""

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise, zip_longest
from numbers import Integral, Number
from typing import Any, cast

import numpy as np
from jaxtyping import Bool

from attnscope.read.chats import ChatTexts, ChatWindows
from attnscope.read.files import is_standard_input
from attnscope.read.shown import IdNames, ShownTokens, probe, special_ids
from attnscope.read.sources import as_list, kind
from attnscope.read.texts import Corpus
from attnscope.read.unnamed import UnnamedTokens
from attnscope.read.windows import Window, Windows
from attnscope.statistics.units import Repeats
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

#: Forms of texts: strings are texts, paths are files or folders, one counts as a list of one, None is the bundled
#: sample; or token ids.
Sources = object

_IGNORED = frozenset(["special_tokens_mask", "offset_mapping", "length", "labels"])  # not for the forward pass
_OF_TOKENS = ("token_type_ids", "position_ids")  # inputs of the forward pass for each token
_DOCUMENTS = ("document_ids", "seq_idx")  # names of the document of each token, the second one transformers'
_READ = ("input_ids", "attention_mask", *_OF_TOKENS, *_DOCUMENTS)
_MARKS = ("groups", "words")  # of each token, for scan: the name of its group, and the number of its word
_MATRIX, _WITH_HEADS = 2, 3  # dimensions of the mask of one text
_FEW = 1 << 17  # tokens of windows that are kept in memory
_FORBIDS = -1e4  # largest bias of a masked score


@dataclass(frozen=True)
class _Row:
    """One text of a batch, or one document of it."""

    name: str
    ids: tuple[int, ...]
    # other inputs of the forward pass: of each token, and ``attention_mask`` with the visible keys of each query
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    masked: bool = False  # whether a mask says what is padding
    marks: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, "tuple[Any, ...]"])  # by `_MARKS`

    def at(self, name: str, tokens: Sequence[int]) -> "_Row":
        """A selection of its tokens; of a mask in both dimensions."""
        inputs = {key: values[np.ix_(*[tokens] * values.ndim)] for key, values in self.inputs.items()}
        marks = {key: tuple(values[token] for token in tokens) for key, values in self.marks.items()}
        return _Row(name, tuple(self.ids[token] for token in tokens), inputs, self.masked, marks)


class EncodedTexts:
    """Texts as token ids: each row is one window, or several packed documents."""

    def __init__(self, given: Any) -> None:
        batches = cast("list[Any]", given if isinstance(given, list) else [given])
        if not batches or not isinstance(batches[0], Mapping):
            batches = [{"input_ids": given}]
        self.notes: dict[str, str] = {}
        self._rows: list[_Row] = []
        for batch in batches:
            if not isinstance(batch, Mapping):
                raise AttnscopeError(f"the token ids are {kind(batch)}; expected a dict, like the others")
            self._add(cast("Mapping[str, Any]", batch))
        if not self._rows:
            raise AttnscopeError("found no token ids; expected at least one row")

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """The ids of each text or document."""
        return [row.ids for row in self._rows]

    @property
    def inputs(self) -> list[str]:
        """What is given with the token ids: inputs of the forward passes, groups and words."""
        return sorted({name for row in self._rows for name in (*row.inputs, *row.marks)})

    def characters(self) -> int:
        """The length of all texts, in tokens."""
        return sum(map(len, self.rows))

    def sha256(self) -> str:
        """Hash of all ids and other inputs: 64 hexadecimal digits."""
        digest = hashlib.sha256(b"token ids")
        for row in self._rows:
            digest.update(len(row.ids).to_bytes(8, "big") + array("q", row.ids).tobytes())
            if row.inputs:
                digest.update(json.dumps({name: value.tolist() for name, value in sorted(row.inputs.items())}).encode())
            if row.marks:
                digest.update(json.dumps(row.marks, sort_keys=True).encode())
        return digest.hexdigest()

    def windows(self, tokenizer: Any, *, length: int, limit: int | None = None) -> list[Window]:
        """Each text or document as a window; padding tokens at the ends of rows without a mask are left out."""
        names = IdNames(tokenizer)
        special = special_ids(tokenizer)
        if not isinstance(tokenizer, UnnamedTokens):
            special |= {token for token, around in zip(*probe(tokenizer), strict=True) if around}
        windows: list[Window] = []
        cut, repeats = 0, Repeats()
        for row in self._rows[:limit]:
            if not row.masked and len(inner := range(len(row.ids))[_padding(row.ids, tokenizer)]) < len(row.ids):
                cut += 1
                row = row.at(row.name, inner)  # noqa: PLW2901
            if len(row.ids) > length:
                raise AttnscopeError(
                    f"{row.name} has {len(row.ids)} tokens, but a window takes {length}: cut it, or use a larger "
                    "window (--window) if the model allows it"
                )
            if max(row.ids) >= len(tokenizer):
                raise AttnscopeError(
                    f"{row.name} has token id {max(row.ids)}, but the tokenizer has {len(tokenizer)} tokens: use the "
                    "tokenizer that made the ids"
                )
            marks = tuple(map(special.__contains__, row.ids))
            spans = tuple(pairwise(range(len(row.ids) + 1)))
            inputs = tuple((name, values.tobytes()) for name, values in row.inputs.items())
            name = repeats.named(row.name, (row.ids, inputs))
            characters = ShownTokens(partial(names.of, row.ids))
            of: Any = {"roles": row.marks.get("groups", ()), "words": _numbered(row.marks.get("words", ()))}
            windows.append(Window(row.ids, marks, spans, name, 0, characters, inputs=row.inputs, **of))
        if cut:
            self.notes["ends"] = (
                f"{count(cut, 'row')} of {len(windows)} without an attention_mask had padding tokens at an end, which "
                "are left out. Give a mask if they are text."
            )
        return windows

    def _add(self, batch: Mapping[str, Any]) -> None:
        ids = batch.get("input_ids", batch.get("sequences"))
        rows = [_ids(row, number) for number, row in enumerate(_rows(ids), start=len(self._rows) + 1)]
        beside = {name: value for name, value in batch.items() if name not in _IGNORED and value is not None}
        if "sequences" in batch:  # what `generate` returns; its scores and caches are of another pass
            beside = {"input_ids": ids}
        unknown = sorted(beside.keys() - {*_READ, *_MARKS, "name"})
        if unknown:
            raise AttnscopeError(
                f"found {unknown[0]!r} with the token ids; only {', '.join(_READ)} are used: leave it out to measure "
                "without it"
            )
        of_rows = {name: _of_rows(name, beside[name], rows) for name in _READ[1:] if name in beside}
        marks = {name: _marks(name, beside[name], rows) for name in _MARKS if name in beside}
        first = len(self._rows) + 1
        for at, row in enumerate(rows):
            values = {name: of_row[at] for name, of_row in of_rows.items()}
            name = str(beside.get("name", f"text {first + at}"))
            marked = {mark: of_row[at] for mark, of_row in marks.items()}
            self._rows += self._documents(_Row(name, row, marks=marked), values)

    def _documents(self, row: _Row, values: dict[str, np.ndarray]) -> list[_Row]:
        """The documents packed in a row: named, or separated by restarting positions or the mask."""
        mask = values.pop("attention_mask", None)
        named = [values.pop(name) for name in _DOCUMENTS if name in values]
        if "token_type_ids" in values and not values["token_type_ids"].any():
            del values["token_type_ids"]  # zeros are the default
        real = np.arange(len(row.ids))
        if mask is not None:
            real = np.flatnonzero(mask.any(0) if mask.ndim == _MATRIX else mask)
            if not len(real) or real[-1] - real[0] + 1 != len(real):
                raise AttnscopeError(
                    f"the attention_mask of {row.name} hides tokens between others, or all; expected it to hide only "
                    "padding at the ends"
                )
            if mask.ndim == _MATRIX:
                values["attention_mask"] = mask
        row = replace(row, inputs=values, masked=mask is not None).at(row.name, real.tolist())
        restarts = _changes(np.cumsum(np.diff(row.inputs.get("position_ids", real), prepend=0) <= 0))
        borders = restarts
        if mask is not None:
            borders = _changes(mask[real]) if mask.ndim == 1 else _borders(row.inputs["attention_mask"])
        wanted = _changes(named[0][real]) if named else restarts
        if named and len(np.unique(named[0][real])) != len(wanted) + 1:
            raise AttnscopeError(f"{row.name} has tokens of one document in two places; expected them side by side")
        if wanted - borders:
            self.notes["mixed"] = (
                "Rows contain several documents that could attend to each other in the model: each document was "
                "measured separately."
            )
        cuts = [0, *sorted(borders | wanted), len(real)]
        if len(cuts) == 2:  # noqa: PLR2004 one document
            return [row]
        each = enumerate(pairwise(cuts), start=1)
        return [row.at(f"{row.name}, document {number}", range(start, end)) for number, (start, end) in each]


#: Sources of windows.
Texts = Corpus | EncodedTexts


def texts_of(given: Sources, *, with_inputs: bool = False, **options: Any) -> Texts:
    """Texts from any form; `with_inputs` allows other inputs of the forward pass than token ids."""
    given = as_list(given)
    if not _are_token_ids(given):
        return Corpus.from_sources(given, **options)
    for name in ("field", "by"):
        if options.get(name) is not None:
            raise AttnscopeError(f"the texts are token ids, without fields: leave it out (--{name})")
    texts = EncodedTexts(given)
    if texts.inputs and not with_inputs:
        raise AttnscopeError(
            f"found {texts.inputs[0]!r} with the token ids, which only scan and weights use: leave it out to measure "
            "without it"
        )
    return texts


def texts_and_targets(texts: Sources, targets: Sources, **options: Any) -> tuple[Texts, Corpus | None]:
    """Texts and their translations, if there are any; a dict may name their language by its code."""
    read = texts_of(texts, **options)
    if targets is None:
        return read, None
    if texts is None:
        raise AttnscopeError("found a target without the text that it translates: give the source text too")
    language = None
    if isinstance(targets, Mapping) and len(cast("Mapping[str, Any]", targets)) == 1 and not _are_token_ids(targets):
        [(language, targets)] = cast("Mapping[str, Any]", targets).items()
    target = texts_of(targets, **options)
    if isinstance(read, EncodedTexts) or isinstance(target, EncodedTexts):
        raise AttnscopeError("found token ids with a target; expected text on both sides: give strings or files")
    target.language = language
    if all(any(map(is_standard_input, side.streams)) for side in (read, target)):
        raise AttnscopeError("standard input (-) can be the text or the target, not both: name a file for one")
    return read, target


class CutOnce:
    """Windows that are cut once, as far as somebody reads them; of many, the first."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows, self._cut, self._tokens = windows, list[Window](), 0
        self._rest: Iterator[Window] | None = None

    def __iter__(self) -> Iterator[Window]:
        number = 0
        while number < len(self._cut) or self._tokens <= _FEW:
            if number == len(self._cut):
                self._rest = self._rest or iter(self._windows)
                try:
                    window = next(self._rest)
                except StopIteration:
                    return
                except BaseException:
                    self._rest, self._cut, self._tokens = None, [], 0
                    raise
                self._cut.append(window)
                self._tokens += len(window)
            yield self._cut[number]
            number += 1
        self._rest = None
        yield from islice(self._windows, number, None)


@dataclass(frozen=True)
class FirstWindows:
    """The first of some windows."""

    windows: Iterable[Window]
    limit: int | None

    def __iter__(self) -> Iterator[Window]:
        return islice(self.windows, self.limit)


def windows_of(
    texts: Texts | ChatTexts, tokenizer: Any, *, length: int, stride: int | None = None, limit: int | None = None
) -> FirstWindows | ChatWindows | list[Window]:
    """Windows of texts from any form."""
    if isinstance(texts, Corpus):
        key = id(tokenizer), length, stride
        if key not in texts.cut:  # with the tokenizer, so that no other gets its number
            texts.cut[key] = tokenizer, CutOnce(Windows(texts, tokenizer, length=length, stride=stride))
        return FirstWindows(texts.cut[key][1], limit)
    if isinstance(texts, ChatTexts):
        return texts.windows(length=length, stride=stride, limit=limit)
    if stride is not None:
        raise AttnscopeError("stride needs running text, but token ids are windows: leave it out")
    return texts.windows(tokenizer, length=length, limit=limit)


def _are_token_ids(given: Any) -> bool:
    """Whether the input is whole numbers, or rows that begin with a number; `given` is a result of `as_list`."""
    if isinstance(given, Mapping):
        return "input_ids" in given or "sequences" in given
    if not isinstance(given, list) or not given:
        return False
    first: Any = _plain(cast("list[Any]", given)[0])
    if isinstance(first, Mapping):
        return "input_ids" in first
    if not isinstance(first, list | tuple):
        return isinstance(first, Integral)
    while isinstance(first, list | tuple) and first:
        first = _plain(cast("Sequence[Any]", first)[0])
    return isinstance(first, Number | list | tuple)


def _plain(value: Any) -> Any:
    """A tensor or an array as Python numbers."""
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
            raise AttnscopeError(f"text {number} is {kind(row)}; expected token ids, like the others")
    return rows


def _ids(items: Sequence[Any], number: int) -> tuple[int, ...]:
    if not items:
        raise AttnscopeError(f"text {number} has no token: leave it out")
    row: list[Any] = [_plain(token) for token in items]
    for token in row:
        if isinstance(token, bool) or not isinstance(token, Integral) or int(token) < 0:
            raise AttnscopeError(
                f"text {number} has {token!r:.60}; expected token ids (whole numbers from 0) in one row"
            )
    return tuple(map(int, row))


def _of_rows(name: str, given: Any, rows: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Whole numbers for each token of each row; a mask may also be over pairs of tokens."""
    many = [np.asarray(_plain(values)) for values in given]
    if len(rows) == 1 and len(many) > 1 and len({values.shape for values in many}) == 1:
        many = [np.stack(many)]  # of a single text
    if len(many) != len(rows):
        raise AttnscopeError(
            f"found {len(rows)} texts and {len(many)} rows of {name}; expected equal numbers, as from the tokenizer"
        )
    fitting: list[np.ndarray] = []
    for number, (values, row) in enumerate(zip(many, rows, strict=True), start=1):
        if name == "attention_mask" and values.ndim > 1:
            pairs = _pairs(values[0] if values.ndim == _WITH_HEADS and len(values) == 1 else values)
            fits = pairs is not None and pairs.shape == (len(row),) * _MATRIX
            fitting += [pairs] if pairs is not None else []
        else:
            fits = values.shape == (len(row),) and np.array_equal(values, np.abs(values.astype(int)))
            fitting.append(values.astype(int))
        if not fits:
            more = ", or a 0 or 1 for each query and key" * (name == "attention_mask")
            raise AttnscopeError(
                f"the {name} of text {number} does not fit; expected a whole number from 0 for each token{more}"
            )
    return fitting


def _marks(name: str, given: Any, rows: list[tuple[int, ...]]) -> list[tuple[Any, ...]]:
    """Names of groups or numbers of words for each token of each row."""
    many: Any = _plain(given)
    many = [_plain(values) for values in many] if isinstance(many, list | tuple) and many else [()]
    many = [many] if len(rows) == 1 and not isinstance(many[0], list | tuple) else many
    kind_of, expected = (str, "a name") if name == "groups" else (int, "a whole number, none below the one before,")
    for number, (row, values) in enumerate(zip_longest(rows, many, fillvalue=()), start=1):
        fits = isinstance(values, list | tuple) and len(values) == len(row)
        if not fits or not all(isinstance(value, kind_of) for value in values):
            raise AttnscopeError(f"the {name} of text {number} do not fit; expected {expected} for each token")
        if name == "words" and [*values] != sorted(values):
            raise AttnscopeError(f"the {name} of text {number} do not fit; expected {expected} for each token")
    return [tuple(values) for values in many]


def _numbered(words: Sequence[int]) -> tuple[int, ...]:
    """The words of a window numbered from 0."""
    return tuple(np.unique(words, return_inverse=True)[1].tolist()) if words else ()


def _pairs(mask: np.ndarray) -> np.ndarray | None:
    """The visible keys of each query, from a boolean mask or a bias on scores."""
    numbers = mask.astype(float)
    if mask.dtype == bool or np.isin(numbers, (0, 1)).all():
        return mask.astype(bool)
    return numbers == 0 if ((numbers == 0) | (numbers <= _FORBIDS)).all() else None


def _changes(values: np.ndarray) -> set[int]:
    """Indices where the value changes."""
    return {*(np.flatnonzero(np.diff(values)) + 1).tolist()}


def _borders(pairs: Bool[np.ndarray, "query key"]) -> set[int]:
    """Indices that no query attends across."""
    joined = pairs | pairs.T | np.eye(len(pairs), dtype=bool)
    reach = np.maximum.accumulate([int(np.flatnonzero(row)[-1]) for row in joined])
    return {end + 1 for end, last in enumerate(reach[:-1].tolist()) if last == end}


def _padding(ids: Sequence[int], tokenizer: Any) -> slice:
    """The tokens of a row without padding, for rows without a mask; an end token that also pads stays once."""
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id  # as `generate` pads
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id}
    real = [position for position, token in enumerate(ids) if token != pad]
    if not real or (pad == tokenizer.unk_token_id and pad not in ends):
        return slice(None)
    most = 1 if pad in ends else 0
    return slice(max(0, real[0] - most), real[-1] + 1 + most)
