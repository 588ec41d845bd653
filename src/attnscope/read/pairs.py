"""A text and its translation side by side: what a decoder reads beside what its encoder reads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from attnscope.read.shown import tokenize
from attnscope.read.sources import Text
from attnscope.read.texts import Corpus
from attnscope.read.windows import Frame, Window, check_limit
from attnscope.support.errors import AttnscopeError

#: From the token ids that a decoder shall say to the one that it reads first.
Start = Callable[[Sequence[int]], int]


class TargetTokenizer:
    """A tokenizer that reads every text as a translation (transformers' ``text_target``).

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> tokenizer = AutoTokenizer.from_pretrained(MODEL)
    >>> TargetTokenizer(tokenizer)("The tide")["input_ids"] == tokenizer(text_target="The tide")["input_ids"]
    True
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> Any:
        """Encode a translation."""
        return self._tokenizer(text_target=text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def shifted(said: Window, tokenizer: Any, start: Start) -> Window:
    """What a decoder reads to say a window in training: a start token, and then all that it says but the last.

    Parameters
    ----------
    said : Window
        The target, special tokens included (the labels).
    tokenizer : transformers.PreTrainedTokenizerBase
        It names the start token.
    start : callable
        From the token ids of `said` to the start token's.

    Returns
    -------
    Window
        As long as `said`.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> said = Window((9, 2), (False, True), ((0, 3), (0, 0)), "text 1", 0, ("The", "</s>"))
    >>> read = shifted(said, AutoTokenizer.from_pretrained(MODEL), lambda ids: 1)
    >>> read.ids, read.tokens, read.special
    ((1, 9), ('<s>', 'The'), (True, False))
    """
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
    """Sentences and their translations, line by line: each pair a window whose `target` the decoder reads.

    Pairs of two blank lines are passed over.

    Parameters
    ----------
    texts, targets : Corpus
        Text i of one is the translation of text i of the other; made with ``blank_lines=True``, so that blank lines
        count.
    tokenizer : transformers.PreTrainedTokenizerBase
        A fast tokenizer.
    start : callable
        See `shifted`.
    length : int
        Most tokens of a line on either side, special tokens included.
    limit : int, optional
        Stop after this many pairs.

    Raises
    ------
    AttnscopeError
        `limit` is below 1; while iterating, a line that is too long, or blank on one side alone.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> texts, targets = Corpus.from_sources(["A dog barks."]), Corpus.from_sources(["Ein Hund bellt."])
    >>> pairs = LinePairs(texts, targets, AutoTokenizer.from_pretrained(MODEL), lambda ids: 2, length=32)
    >>> pair = next(iter(pairs))
    >>> pair.tokens[1], pair.target.tokens[:2]
    (' A', ('</s>', '<s>'))
    """

    def __init__(
        self,
        texts: Corpus,
        targets: Corpus,
        tokenizer: Any,
        start: Start,
        *,
        length: int,
        limit: int | None = None,
    ) -> None:
        check_limit(limit)
        self._texts, self._targets = texts, targets
        self._tokenizer, self._start = tokenizer, start
        self._length, self._limit = length, limit

    def __iter__(self) -> Iterator[Window]:
        """Encode the lines anew."""
        return islice(self._pairs(), self._limit)

    def check(self) -> int:
        """Go through all pairs once, so that what is wrong with a line is said before any is measured.

        Returns
        -------
        int
            Tokens of the longest line on either side.

        Raises
        ------
        AttnscopeError
            The numbers of lines differ, or what iterating raises.
        """
        lines, translations = (sum(1 for _ in corpus) for corpus in (self._texts, self._targets))
        if lines != translations:
            raise AttnscopeError(
                f"the text has {lines} lines and the target {translations}: line i of each must be the same sentence"
            )
        return max(max(len(pair), len(pair.target or pair)) for pair in self)

    def _pairs(self) -> Iterator[Window]:
        target_tokenizer = TargetTokenizer(self._tokenizer)
        around_text, around_target = Frame.of(self._tokenizer), Frame.of(target_tokenizer)
        for text, target in zip(self._texts, self._targets, strict=False):  # `check` counts them
            blank = [not side.content.strip() for side in (text, target)]
            if any(blank) and not all(blank):
                name, here, there = (
                    (text.name, "text", "target") if blank[0] else (target.name, "target", "text")
                )
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
