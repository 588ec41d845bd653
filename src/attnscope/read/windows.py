"""Windows: pieces of a text, as long as a model is to see them, with the characters behind every token."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.read.shown import Token, probe, tokenize
from attnscope.read.sources import Text
from attnscope.support.errors import AttnscopeError

_REMEMBERED = 100_000  # windows whose places are known: more than those that wait in pools


@dataclass(frozen=True)
class Window:
    """A stretch of one text as a model sees it.

    Attributes
    ----------
    ids : tuple of int
        Token ids, the special tokens around the text included.
    special : tuple of bool
        Which tokens are special: those the tokenizer puts around a text, and any beginning, end, separator,
        class or padding token that is written out in the text itself.
    spans : tuple of (int, int)
        First character and one past the last character of each token in the text, as the tokenizer gives
        them. A token put around the text has ``(start, start)``; a space that the tokenizer puts in has an
        empty span.
    source : str
        Name of the text.
    start : int
        Where in the text the window's first token begins, in characters.
    tokens : tuple of str
        What to show for each token: the characters it covers. A token that begins a word begins with a space: with
        the one that the tokenizer makes part of it (``▁the``, ``Ġthe``), or with the one before it in the text.
        Where several tokens share a character (a byte-level tokenizer may split 語 into three), the number of the
        piece follows it: ``語₁``, ``語₂``, ``語₃``. What begins with a combining mark or an invisible joiner is shown
        on a dotted circle, ``◌́``. A space that the tokenizer puts in is shown as a space, and a token put around the
        text by its own name, ``[CLS]``.
    target : Window, optional
        What the decoder of an encoder-decoder reads beside this window; None for the same tokens.
    roles : tuple of str
        In a chat, who says each token, ``template`` for the marks of its template; else empty.
    groups : tuple of int
        The number of the group of each token, where tokens are in groups; else empty.
    text : str
        The whole text, whose characters the spans count; empty where token ids alone are known.
    words : tuple of int
        The number of the word of each token, from 0, where tokens are merged to words; else empty.
    by : str
        Value of the text: see `Text`.

    Examples
    --------
    >>> window = Window((0, 5), (True, False), ((0, 0), (0, 3)), "text 1", 0, ("<s>", "The"))
    >>> len(window)
    2
    """

    ids: tuple[int, ...]
    special: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]
    source: str
    start: int
    tokens: tuple[str, ...]
    target: "Window | None" = None
    roles: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    text: str = field(default="", repr=False)
    words: tuple[int, ...] = ()
    by: str = ""

    def __len__(self) -> int:
        """Number of tokens, those of the target not counted."""
        return len(self.ids)


def window_name(window: "Window | Sequence[int]", number: int) -> str:
    """What to call a window in an error, by its number from 0; of bare token ids no more is known.

    Parameters
    ----------
    window
        A window, or token ids.
    number
        Number of the window, from 0.

    Examples
    --------
    >>> window_name(Window((0, 5), (True, False), ((0, 0), (0, 3)), "essay.txt", 3520, ("<s>", "The")), 10)
    'window 11 (essay.txt from character 3520)'
    """
    where = f" ({window.source} from character {window.start})" if isinstance(window, Window) else ""
    return f"window {number + 1}{where}"


def cut_windows(
    corpus: Iterable[Text],
    tokenizer: Any,
    *,
    length: int,
    stride: int | None = None,
    limit: int | None = None,
    frame: "Frame | None" = None,
) -> "Windows":
    """Cut every text of a corpus into windows of `length` tokens.

    Windows follow each other within a text and never cross from one text to the next. Around each stand the
    special tokens that the tokenizer puts around a single text. A text shorter than a window gives one
    shorter window. Of a longer text, the rest that follows the last full window makes a shorter window if
    that holds at least half as many tokens of the text as a full one; otherwise the rest is dropped and
    counted. Texts without tokens are passed over.

    Parameters
    ----------
    corpus : iterable of Text
        The texts, such as a `Corpus`.
    tokenizer : transformers.PreTrainedTokenizerBase
        A fast tokenizer; only these know which characters a token covers.
    length : int
        Tokens in a window, special tokens included.
    stride : int, optional
        Tokens of the text between the starts of successive windows, at most as many as a window holds of them
        (default: that many, so that windows do not overlap).
    limit : int, optional
        Stop after this many windows. What follows in the corpus is not tokenized.
    frame : Frame, optional
        Special tokens around each window; by default those that the tokenizer puts around a single text.

    Returns
    -------
    Windows
        Iterable over `Window`; the work is done while it is iterated.

    Raises
    ------
    AttnscopeError
        The tokenizer is not fast, `length` leaves no room beside the special tokens, `stride` or `limit` is
        out of range; while iterating, what reading the corpus raises, or that the corpus has no token.

    Notes
    -----
    A long text is tokenized in pieces of about 100,000 characters, cut at a line break and read with some
    characters on both sides, so that memory stays bounded and `limit` is cheap. A text without line breaks is
    taken whole.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> from attnscope.read import Corpus
    >>> words = Tokenizer(models.WordLevel({"?": 0, "tide": 1, "out": 2}, unk_token="?"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    >>> windows = cut_windows(Corpus.from_sources(["The tide is out"]), tokenizer, length=2)
    >>> [(window.tokens, window.start) for window in windows]
    [(('The', ' tide'), 0), ((' is', ' out'), 9)]
    >>> windows.dropped_tokens
    0
    """
    if not getattr(tokenizer, "is_fast", False):
        raise AttnscopeError(
            f"found {type(tokenizer).__name__}, which does not tell the characters behind a token; expected "
            "a fast tokenizer of transformers.\nLoad one with AutoTokenizer.from_pretrained from a folder "
            "that holds a tokenizer.json"
        )
    frame = Frame.of(tokenizer) if frame is None else frame
    content = length - len(frame.prefix) - len(frame.suffix)
    if content < 1:
        added = len(frame.prefix) + len(frame.suffix)
        raise AttnscopeError(
            f"length {length} leaves no room for text: the tokenizer adds special tokens ({added} a window); "
            f"expected a length of at least {added + 1}"
        )
    if stride is not None and not 1 <= stride <= content:
        raise AttnscopeError(
            f"found stride {stride}; expected 1 to {content}, the tokens of text in a window of {length}: "
            "choose one of these, or leave it out for windows that do not overlap"
        )
    check_limit(limit)
    return Windows(corpus, tokenizer, frame, content=content, stride=stride or content, limit=limit)


def check_limit(limit: int | None) -> None:
    """Refuse to take no window at all.

    Examples
    --------
    >>> check_limit(0)
    Traceback (most recent call last):
    ...
    attnscope.support.errors.AttnscopeError: found limit 0; expected at least 1 window: raise it, or leave it out to take all
    """
    if limit is not None and limit < 1:
        raise AttnscopeError(
            f"found limit {limit}; expected at least 1 window: raise it, or leave it out to take all"
        )


class Windows:
    """The windows of a corpus, cut while they are iterated. Made by `cut_windows`.

    Attributes
    ----------
    dropped_tokens : int
        Tokens at the ends of texts that came into no window, so far in the latest iteration.

    Examples
    --------
    See `cut_windows`.

    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> from attnscope.read import Corpus
    >>> corpus = Corpus.from_sources(["The tide is out."])
    >>> windows = cut_windows(corpus, AutoTokenizer.from_pretrained(MODEL), length=6)
    >>> [list(window.tokens) for window in windows]
    [['<s>', ' The', ' t', 'ide', ' is', '</s>'], ['<s>', ' o', 'ut', '.', '</s>']]
    >>> [window.start for window in windows.beginning(Place(1, 0, 1))]  # cut anew, from the second on
    [11]
    """

    def __init__(
        self,
        corpus: Iterable[Text],
        tokenizer: Any,
        frame: "Frame",
        *,
        content: int,
        stride: int,
        limit: int | None,
    ) -> None:
        self.dropped_tokens = 0
        self._corpus, self._tokenizer, self._frame = corpus, tokenizer, frame
        self._content, self._stride, self._limit = content, stride, limit

    def __iter__(self) -> Iterator[Window]:
        """Cut the corpus anew."""
        return self.beginning(Place())

    def beginning(self, place: "Place") -> "Cutting":
        """The windows from a place on; the texts before it are read, and not tokenized."""
        return Cutting(self._cut(place))

    def _cut(self, place: "Place") -> Iterator[tuple[Window, "Place"]]:
        """The windows from a place on, each with its own place."""
        self.dropped_tokens = 0
        count = first = place.windows - place.within
        for document, text in enumerate(islice(self._corpus, place.documents, None), place.documents):
            first = count
            for tokens in self._stretches(tokenize(self._tokenizer, text.content)):
                if count >= place.windows:
                    yield self._frame.around(tokens, text), Place(count, document, count - first)
                count += 1
                if count == self._limit:
                    return
        if count == 0:
            raise AttnscopeError(
                "no window: the tokenizer makes no token of any text in the corpus; expected at least one: "
                "check that the tokenizer is made for this kind of text"
            )

    def _stretches(self, tokens: Iterator[Token]) -> Iterator[list[Token]]:
        """The tokens of each window of one text."""
        waiting: list[Token] = []
        new = 0  # tokens in `waiting` that came into no window yet
        full = False
        for token in tokens:
            waiting.append(token)
            new += 1
            if len(waiting) == self._content:
                yield waiting
                waiting, new, full = waiting[self._stride :], 0, True
        if new and (not full or 2 * len(waiting) >= self._content):
            yield waiting
        else:
            self.dropped_tokens += new


@dataclass(frozen=True, slots=True)
class Place:
    """Where a window begins, so that windows can be cut from there on.

    Attributes
    ----------
    windows
        How many come before it.
    documents
        How many texts come before its own.
    within
        How many windows of its own text come before it.

    Examples
    --------
    >>> place = Place(windows=12, documents=3, within=2)
    >>> place.windows - place.within  # windows before its text
    10
    """

    windows: int = 0
    documents: int = 0
    within: int = 0


class Cutting(Iterator[Window]):
    """Windows as they are cut, which remembers where those cut lately began. Made by `Windows.beginning`.

    Examples
    --------
    >>> window = Window((0, 5), (True, False), ((0, 0), (0, 3)), "text 1", 0, ("<s>", "The"))
    >>> cutting = Cutting(iter([(window, place) for place in (Place(), Place(1, 0, 1), Place(2, 5, 0))]))
    >>> len(list(cutting))
    3
    >>> cutting.place(1), cutting.place(3), cutting.place(9)
    (Place(windows=1, documents=0, within=1), Place(windows=3, documents=5, within=1), None)
    """

    def __init__(self, cut: Iterator[tuple[Window, Place]]) -> None:
        self._cut = cut
        self._lately: deque[Place] = deque(maxlen=_REMEMBERED)

    def __next__(self) -> Window:
        """The next window."""
        window, place = next(self._cut)
        self._lately.append(place)
        return window

    def place(self, windows: int) -> Place | None:
        """Where the window of this number begins, the one after the last included; None where that is forgotten."""
        if not self._lately:
            return None
        last = self._lately[-1]
        if windows == last.windows + 1:
            return Place(windows, last.documents, last.within + 1)
        back = windows - self._lately[0].windows
        return self._lately[back] if 0 <= back < len(self._lately) else None


@dataclass(frozen=True)
class Frame:
    """The special tokens that stand around a window.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> frame = Frame.of(AutoTokenizer.from_pretrained(MODEL))
    >>> frame.prefix, frame.suffix, frame.names
    ((1,), (2,), {1: '<s>', 2: '</s>'})
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    names: dict[int, str]

    @classmethod
    def of(cls, tokenizer: Any) -> "Frame":
        """Found by encoding a probe."""
        ids, mask = probe(tokenizer)
        if 0 not in mask:
            raise AttnscopeError(
                'the tokenizer makes no token of "a A 1"; expected at least one, to find the special tokens '
                "around it: give the tokenizer an unknown token"
            )
        first, last = mask.index(0), len(mask) - mask[::-1].index(0)
        prefix, suffix = tuple(ids[:first]), tuple(ids[last:])
        return cls(prefix, suffix, {i: str(tokenizer.convert_ids_to_tokens(i)) for i in prefix + suffix})

    def around(self, tokens: Sequence[Token], text: Text) -> Window:
        """A window of tokens of a text that follow each other, at least one."""
        start = tokens[0].start
        before, after = len(self.prefix), len(self.suffix)
        here = (start, start)
        return Window(
            ids=(*self.prefix, *(token.id for token in tokens), *self.suffix),
            special=(*[True] * before, *(token.special for token in tokens), *[True] * after),
            spans=(*[here] * before, *((token.start, token.end) for token in tokens), *[here] * after),
            source=text.name,
            start=start,
            tokens=(
                *(self.names[i] for i in self.prefix),
                *(token.shown for token in tokens),
                *(self.names[i] for i in self.suffix),
            ),
            text=text.content,
            by=text.by,
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows side by side, padded on the right.

    Attributes
    ----------
    input_ids : Int64[Tensor, "batch position"]
        Token ids.
    valid : Bool[Tensor, "batch position"]
        False on padding.
    special : Bool[Tensor, "batch position"]
        True on special tokens, False on padding.
    groups : Int64[Tensor, "batch position"], optional
        The number of the group of each token, -1 on padding; None where tokens are in no groups.

    Examples
    --------
    >>> window = Window((0, 5), (True, False), ((0, 0), (0, 3)), "text 1", 0, ("<s>", "The"))
    >>> collate([window], pad_id=1).input_ids
    tensor([[0, 5]])
    """

    input_ids: Int[Tensor, "batch position"]
    valid: Bool[Tensor, "batch position"]
    special: Bool[Tensor, "batch position"]
    groups: Int[Tensor, "batch position"] | None = None

    @property
    def attention_mask(self) -> Int[Tensor, "batch position"] | None:
        """What a model takes as ``attention_mask``; None where nothing is padded."""
        return None if bool(self.valid.all()) else self.valid.long()

    def to(self, device: torch.device | str) -> "Batch":
        """The same on another device."""
        groups = None if self.groups is None else self.groups.to(device)
        return Batch(self.input_ids.to(device), self.valid.to(device), self.special.to(device), groups)


def collate(windows: Sequence[Window], pad_id: int) -> Batch:
    """Put windows side by side, padded on the right to the longest.

    Parameters
    ----------
    windows : sequence of Window
        At least one.
    pad_id : int
        Token id for padding. Padding is masked, so any id that the model knows will do.

    Returns
    -------
    Batch
        Tensors of shape ``(batch, position)``.

    Raises
    ------
    AttnscopeError
        No window.

    Examples
    --------
    >>> short = Window((0,), (True,), ((0, 0),), "text 1", 0, ("<s>",))
    >>> long = Window((0, 5), (True, False), ((0, 0), (0, 3)), "text 2", 0, ("<s>", "The"))
    >>> collate([short, long], pad_id=1).attention_mask
    tensor([[1, 0],
            [1, 1]])
    """
    if not windows:
        raise AttnscopeError("found no window to put into a batch; expected at least one: give some windows")
    longest = max(map(len, windows))
    shape = (len(windows), longest)
    input_ids = torch.full(shape, pad_id, dtype=torch.int64)
    valid, special = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    groups = torch.full(shape, -1) if all(window.groups for window in windows) else None
    for row, window in enumerate(windows):
        input_ids[row, : len(window)] = torch.tensor(window.ids, dtype=torch.int64)
        special[row, : len(window)] = torch.tensor(window.special, dtype=torch.bool)
        valid[row, : len(window)] = True
        if groups is not None:
            groups[row, : len(window)] = torch.tensor(window.groups)
    return Batch(input_ids, valid, special, groups)
