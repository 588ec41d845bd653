"""A text and its translation side by side: what a decoder reads beside what its encoder reads."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any

from attnscope.read.shown import probe, tokenize
from attnscope.read.sources import Text
from attnscope.read.texts import Corpus
from attnscope.read.windows import Frame, Window, check_limit
from attnscope.support.errors import AttnscopeError, explaining

#: From the token ids that a decoder shall say to the one that it reads first.
Start = Callable[[Sequence[int]], int]


class TargetTokenizer:
    """A tokenizer that reads every text as a translation (transformers' ``text_target``), into a language."""

    def __init__(self, tokenizer: Any, language: str | None = None) -> None:
        has_languages = hasattr(tokenizer, "tgt_lang")
        if language is not None and not has_languages:
            raise AttnscopeError(
                f"targets are in {language!r:.40}, and {type(tokenizer).__name__} has no languages: give them alone"
            )
        language = language or getattr(tokenizer, "tgt_lang", None)
        self.tokenizer = tokenizer = copy(tokenizer)
        if not has_languages:
            return
        if language is None:
            raise AttnscopeError(
                f"{type(tokenizer).__name__} begins a translation with its language: name it by "
                'targets={"CODE": ...}, or as tgt_lang in tokenizer_config.json'
            )
        tokenizer.tgt_lang = language
        advice = "Give a code that the tokenizer has"
        with explaining(f"{type(tokenizer).__name__} cannot translate into {language!r:.40}", advice):
            if tokenizer.unk_token_id in probe(self)[0][:1] + probe(self)[0][-1:]:
                raise ValueError("it does not know the language")

    def __call__(self, text: str, **options: Any) -> Any:
        """Encode a translation."""
        return self.tokenizer(text_target=text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def shifted(said: Window, tokenizer: Any, start: Start) -> Window:
    """What a decoder reads to say a window in training: a start token, and then all that it says but the last."""
    first = start(said.ids)
    here = (said.start, said.start)
    return replace(
        said,
        ids=(first, *said.ids[:-1]),
        special=(True, *said.special[:-1]),
        spans=(here, *said.spans[:-1]),
        tokens=(str(tokenizer.convert_ids_to_tokens(first)), *said.tokens[:-1]),
    )


class LinePairs:
    """Sentences and their translations, line by line: each pair a window whose `target` the decoder reads."""

    def __init__(
        self, texts: Corpus, targets: Corpus, tokenizer: Any, start: Start, *, length: int, limit: int | None = None
    ) -> None:
        check_limit(limit)
        self._texts, self._targets = texts, targets
        self._tokenizer, self._start = tokenizer, start
        self._length, self._limit = length, limit

    def __iter__(self) -> Iterator[Window]:
        """Encode the lines anew."""
        return islice(self._pairs(), self._limit)

    def check(self) -> int:
        """Go through all pairs once, so that what is wrong with a line is said before any is measured."""
        lines, translations = (sum(1 for _ in corpus) for corpus in (self._texts, self._targets))
        if lines != translations:
            raise AttnscopeError(
                f"the text has {lines} lines and the target {translations}: line i of each must be the same sentence"
            )
        return max(max(len(pair), len(pair.target or pair)) for pair in self)

    def _pairs(self) -> Iterator[Window]:
        target_tokenizer = TargetTokenizer(self._tokenizer, self._targets.language)
        around_text, around_target = Frame.of(self._tokenizer), Frame.of(target_tokenizer)
        for text, target in zip(self._texts, self._targets, strict=False):  # `check` counts them
            blank = [not side.content.strip() for side in (text, target)]
            if any(blank) and not all(blank):
                name, here, there = (text.name, "text", "target") if blank[0] else (target.name, "target", "text")
                raise AttnscopeError(
                    f"{name} of the {here} is blank, and that line of the {there} is not: fill it, or leave out both"
                )
            if not any(blank):
                said = self._line(target, target_tokenizer, around_target, "target")
                read = shifted(said, self._tokenizer, self._start)
                yield replace(self._line(text, self._tokenizer, around_text, "text"), target=read)

    def _line(self, text: Text, tokenizer: Any, frame: Frame, side: str) -> Window:
        tokens = list(tokenize(tokenizer, text.content))
        if not tokens:
            raise AttnscopeError(
                f"the tokenizer makes no token of {text.name} of the {side}; expected at least one: leave out that pair"
            )
        window = frame.around(tokens, text)
        if len(window) > self._length:
            raise AttnscopeError(
                f"{text.name} of the {side} has {len(window)} tokens, and a window takes {self._length}: leave out "
                "that pair of lines, or give a larger --window where the model can take it"
            )
        return window
