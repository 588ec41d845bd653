"""Windows: pieces of a text, or lines with their translations, with the characters of every token."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.read.shown import ShownTokens, Spans, Tokens, probe, tokenize, tokens_of
from attnscope.read.sources import Text
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count


@dataclass(frozen=True)
class Window:
    """A piece of one text for a model."""

    ids: tuple[int, ...]  # token ids, with the special tokens around the text
    # which tokens are special: those that the tokenizer adds, and beginning, end, separator, class or padding tokens
    # in the text
    special: tuple[bool, ...]
    # first character and one past the last character of each token in the text, from the tokenizer
    spans: Sequence[tuple[int, int]]
    source: str  # name of the text
    start: int  # first character of the window in the text
    shown: Sequence[str]  # the characters of each token
    # input of the decoder of an encoder-decoder; None for the same tokens
    target: "Window | None" = None
    # in a chat, the role of each token, ``template`` for the marks of its template; else empty
    roles: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()  # the number of the group of each token, if there are groups
    # the whole text of the spans; empty for token ids
    text: str = field(default="", repr=False)
    # the number of the word of each token, from 0, if tokens are merged to words
    words: tuple[int, ...] = ()
    by: str = ""  # value of the text: see `Text`
    # other inputs of the forward pass: of each token, and ``attention_mask`` with the visible keys of each query
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], compare=False, repr=False)

    def __len__(self) -> int:
        """Number of tokens, without those of the target."""
        return len(self.ids)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Displayed tokens."""
        return tuple(self.shown)


def window_name(window: "Window | Sequence[int]", number: int) -> str:
    """The name of a window in an error, by its number from 0, with its source if known."""
    where = f" ({window.source} from character {window.start})" if isinstance(window, Window) else ""
    return f"window {number + 1}{where}"


class Windows:
    """The windows of a corpus, of `length` tokens each, cut during iteration."""

    def __init__(
        self,
        corpus: Iterable[Text],
        tokenizer: Any,
        *,
        length: int,
        stride: int | None = None,
        limit: int | None = None,
        frame: "Frame | None" = None,
    ) -> None:
        frame = Frame.of(tokenizer) if frame is None else frame
        added = len(frame.prefix) + len(frame.suffix)
        content = length - added
        if content < 1:
            raise AttnscopeError(
                f"window (--window) is {length}; expected {added + 1} or more, as the tokenizer adds "
                f"{count(added, 'special token')} to each"
            )
        if stride is not None and not 1 <= stride <= content:
            raise AttnscopeError(
                f"found stride {stride}; expected 1 to {content}, the tokens of text in a window of {length}, or none "
                "for windows without overlap"
            )
        self._corpus, self._tokenizer, self._frame = corpus, tokenizer, frame
        self._content, self._stride, self._limit = content, stride or content, limit

    def __iter__(self) -> Iterator[Window]:
        number = 0
        for text in self._corpus:
            for tokens in self._stretches(tokenize(self._tokenizer, text.content)):
                yield self._frame.around(tokens, text)
                number += 1
                if number == self._limit:
                    return
        if number == 0:
            raise AttnscopeError(
                "found no window: the tokenizer returns no token for any text: check that it is made for this type of "
                "text"
            )

    def _stretches(self, pieces: Iterator[Tokens]) -> Iterator[Tokens]:
        """The tokens of each window of one text."""
        waiting: Tokens | None = None
        new = 0  # tokens in `waiting` that are in no window yet
        full = False
        for piece in pieces:
            waiting = piece if waiting is None else waiting + piece
            new += len(piece)
            first = 0
            while first + self._content <= len(waiting):
                last = first + self._content
                yield waiting[first:last]
                first, new, full = first + self._stride, len(waiting) - last, True
            waiting = waiting[first:]
        # a rest of less than half a window is left out, unless the text has no other
        if waiting is not None and new and (not full or 2 * len(waiting) >= self._content):
            yield waiting


@dataclass(frozen=True)
class Frame:
    """The special tokens around a window."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    names: dict[int, str]

    @classmethod
    def of(cls, tokenizer: Any) -> "Frame":
        """Found by encoding a probe."""
        ids, mask = probe(tokenizer)
        if 0 not in mask:
            raise AttnscopeError(
                'the tokenizer returns no token for "a A 1"; expected at least one, to find the special tokens around '
                "it: add an unknown token to the tokenizer"
            )
        first, last = mask.index(0), len(mask) - mask[::-1].index(0)
        prefix, suffix = tuple(ids[:first]), tuple(ids[last:])
        return cls(prefix, suffix, {i: str(tokenizer.convert_ids_to_tokens(i)) for i in prefix + suffix})

    def around(self, tokens: Tokens, text: Text) -> Window:
        """A window of consecutive tokens of a text, at least one."""
        start = tokens.spans[0][0]
        before, after = len(self.prefix), len(self.suffix)
        spans = np.full((before + len(tokens) + after, 2), start, np.int64)
        spans[before : before + len(tokens)] = tokens.spans.ends
        names = [self.names[i] for i in self.prefix + self.suffix]
        return Window(
            ids=(*self.prefix, *tokens.ids, *self.suffix),
            special=(*[True] * before, *tokens.special, *[True] * after),
            spans=Spans(spans),
            source=text.name,
            start=start,
            # made when a page shows them, not for each window
            shown=ShownTokens(lambda: (*names[:before], *tokens.shown, *names[before:])),
            text=text.content if tokens.is_aligned else "",
            by=text.by,
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of windows, padded on the right."""

    input_ids: Int[Tensor, "batch position"]  # token ids
    valid: Bool[Tensor, "batch position"]  # false on padding
    special: Bool[Tensor, "batch position"]  # true on special tokens, False on padding
    # the number of the group of each token, -1 on padding; None without groups
    groups: Int[Tensor, "batch position"] | None = None
    # other inputs of the forward pass: of each token, and ``attention_mask`` with the visible keys of each query
    inputs: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    host: "Batch | None" = None  # of a batch on a device: the same on the host, from where it was copied

    def on_host(self) -> "Batch | None":
        """The same on the host; None if it was never there."""
        return self if self.valid.device.type == "cpu" else self.host

    def on(self, device: torch.device) -> "Batch":
        """The same tokens on the device of a layer, without inputs of the forward pass."""
        if self.valid.device == device:
            return self
        groups = None if self.groups is None else self.groups.to(device)
        return Batch(self.input_ids.to(device), self.valid.to(device), self.special.to(device), groups)

    def arguments(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Arguments of the forward pass of a model of that type; no mask without padding or hidden tokens."""
        arguments = {"input_ids": self.input_ids, **self.inputs}
        if "attention_mask" in arguments:  # in the form for all kinds of attention
            hidden = ~arguments["attention_mask"][:, None]
            arguments["attention_mask"] = torch.zeros_like(hidden, dtype=dtype).masked_fill(
                hidden, torch.finfo(dtype).min
            )
        elif not bool((self.host or self).valid.all()):
            arguments["attention_mask"] = self.valid.long()
        return arguments


def collate(windows: Sequence[Window], pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """A batch of windows, padded on the right to the longest."""
    if not windows:
        raise AttnscopeError("found no window for a batch; expected at least one")
    input_ids, special = padded([window.ids for window in windows], pad_id), padded([w.special for w in windows]).bool()
    valid = torch.arange(input_ids.shape[1]) < torch.tensor([*map(len, windows)])[:, None]
    groups = padded([w.groups for w in windows], -1).to(device) if all(window.groups for window in windows) else None
    each = ((name, [window.inputs[name] for window in windows]) for name in windows[0].inputs)
    inputs = {name: _stacked(values, input_ids.shape[1]).to(device) for name, values in each}
    host = Batch(input_ids, valid, special)
    return Batch(input_ids.to(device), valid.to(device), special.to(device), groups, inputs, host)


def padded(rows: Sequence[Sequence[int]], fill: int = 0, *, left: bool = False) -> Int[Tensor, "row position"]:
    """Rows of whole numbers, padded to the longest."""
    longest = max(map(len, rows))
    whole = np.full((len(rows), longest), fill, np.int64)
    for number, row in enumerate(rows):
        places = slice(longest - len(row), None) if left else slice(len(row))
        whole[number, places] = row
    return torch.from_numpy(whole)


def _stacked(several: Sequence[np.ndarray], longest: int) -> Tensor:
    """A batch of arrays, padded with zeros at the end of each dimension."""
    whole = [np.pad(values, [(0, longest - len(values))] * values.ndim) for values in several]
    return torch.from_numpy(np.stack(whole))


#: From the token ids of a decoder's output to its first input.
Start = Callable[[Sequence[int]], int]


class TargetTokenizer:
    """A tokenizer that encodes texts as translations (transformers' ``text_target``) into a language."""

    def __init__(self, tokenizer: Any, language: str | None = None) -> None:
        has_languages = hasattr(tokenizer, "tgt_lang")
        if language is not None and not has_languages:
            raise AttnscopeError(
                f"targets are in {language!r:.40}, but {type(tokenizer).__name__} has no languages: leave out the code"
            )
        language = language or getattr(tokenizer, "tgt_lang", None)
        self.tokenizer = tokenizer = copy(tokenizer)
        if not has_languages:
            return
        if language is None:
            raise AttnscopeError(
                f'{type(tokenizer).__name__} needs the language of translations: use targets={{"CODE": ...}}, or '
                "tgt_lang in tokenizer_config.json"
            )
        tokenizer.tgt_lang = language
        advice = "Give a code that the tokenizer has"
        with explaining(f"{type(tokenizer).__name__} cannot translate into {language!r:.40}", advice):
            if tokenizer.unk_token_id in probe(self)[0][:1] + probe(self)[0][-1:]:
                raise ValueError("unknown language")

    def __call__(self, text: str, **options: Any) -> Any:
        return self.tokenizer(text_target=text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def shifted(said: Window, tokenizer: Any, start: Start) -> Window:
    """The decoder's input in training: a start token, and then all tokens except the last."""
    first = start(said.ids)
    here = (said.start, said.start)
    ids, special, spans = (first, *said.ids[:-1]), (True, *said.special[:-1]), (here, *said.spans[:-1])
    shown = ShownTokens(lambda: (str(tokenizer.convert_ids_to_tokens(first)), *said.tokens[:-1]))
    # teacher forcing: position i reads token i - 1 and predicts token i
    return replace(said, ids=ids, special=special, spans=spans, shown=shown)


@dataclass(frozen=True, eq=False)
class LinePairs:
    """Sentences and their translations, line by line: each pair is a window with the translation as `target`."""

    texts: Corpus
    targets: Corpus
    tokenizer: Any
    start: Start | None  # None for a masked language model: a target is its whole line, of as many tokens as the text
    length: int
    limit: int | None = None

    def __iter__(self) -> Iterator[Window]:
        return islice(self._pairs(), self.limit)

    def check(self) -> int:
        """Check all pairs before any is measured."""
        lines, translations = (sum(1 for _ in corpus) for corpus in (self.texts, self.targets))
        if lines != translations:
            raise AttnscopeError(
                f"the text has {lines} lines and the target {translations}; expected the same number, with line i of "
                "each for the same sentence"
            )
        return max(max(len(pair), len(pair.target or pair)) for pair in self)

    def _pairs(self) -> Iterator[Window]:
        target_tokenizer = TargetTokenizer(self.tokenizer, self.targets.language)
        around_text, around_target = Frame.of(self.tokenizer), Frame.of(target_tokenizer)
        for text, target in zip(self.texts, self.targets, strict=False):  # `check` counts them
            blank = [not side.content.strip() for side in (text, target)]
            if any(blank) and not all(blank):
                name, here, other = (text.name, "text", "target") if blank[0] else (target.name, "target", "text")
                raise AttnscopeError(
                    f"{name} of the {here} is blank, but that line of the {other} is not: fill it, or leave out both"
                )
            if not any(blank):
                said = self._line(target, target_tokenizer, around_target, "target")
                line = self._line(text, self.tokenizer, around_text, "text")
                if self.start is None and len(line) != len(said):
                    raise AttnscopeError(
                        f"{text.name} of the text has {len(line)} tokens and its target {len(said)}; expected the same "
                        "number, because each token of the target is the right one at its position"
                    )
                yield replace(line, target=said if self.start is None else shifted(said, self.tokenizer, self.start))

    def _line(self, text: Text, tokenizer: Any, frame: Frame, side: str) -> Window:
        tokens = tokens_of(tokenizer, text.content)
        if not len(tokens):
            raise AttnscopeError(
                f"the tokenizer returns no token for {text.name} of the {side}; expected at least one: leave out that "
                "pair"
            )
        window = frame.around(tokens, text)
        if len(window) > self.length:
            raise AttnscopeError(
                f"{text.name} of the {side} has {len(window)} tokens, but a window takes {self.length}: leave out "
                "that pair of lines, or use a larger --window if the model allows it"
            )
        return window
