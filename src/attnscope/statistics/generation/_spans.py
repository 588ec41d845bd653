"""Named spans of a prompt: which of its tokens are the system's words, the question, a document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from torch import Tensor

PROMPT, SOURCE, START, OWN = "prompt", "source", "start", "own output"
_TAKEN = (PROMPT, SOURCE, START, OWN)
MOST = 16  # spans: each is kept for every head and token

#: Spans of one prompt by name: first token and the one after the last, a slice, or numbers of tokens.
Spans = Mapping[str, tuple[int, int] | slice | Iterable[int]]
#: The same for all prompts, for each prompt of a batch, or as a function of the token ids of a prompt.
GivenSpans = Spans | Sequence[Spans] | Callable[[list[int]], Spans]


class Prompts:
    """The texts that a model is to go on with (an encoder-decoder: that it reads), and their spans.

    Parameters
    ----------
    ids
        ``(text, token)``; None where the model is given something else.
    mask
        ``(text, token)``: 0 on padding; None without any.
    given
        Spans.

    Raises
    ------
    AttnscopeError
        A span lies outside of its prompt, or there are too many.

    Examples
    --------
    >>> prompts = Prompts(torch.tensor([[0, 5, 6]]), torch.tensor([[0, 1, 1]]), {"question": (1, 2)})
    >>> prompts.tokens(0), prompts.names, prompts.spans[0]["question"].tolist()
    ([5, 6], ('question',), [1])
    """

    def __init__(self, ids: Tensor | None, mask: Tensor | None, given: GivenSpans | None = None) -> None:
        self.ids, self.mask = ids, mask
        self.spans = self._read(given)
        self.names = tuple(dict.fromkeys(name for spans in self.spans for name in spans))
        if len(self.names) > MOST:
            raise AttnscopeError(f"there are {len(self.names)} named spans; expected at most {MOST}")

    def tokens(self, text: int) -> list[int]:
        """The ids of a text without padding; none where the model is given something else."""
        if self.ids is None:
            return []
        ids = self.ids[text] if self.mask is None else self.ids[text][self.mask[text] > 0]
        return [int(token) for token in ids]

    def padding(self, batch: int) -> Tensor:
        """``(batch,)``: places before the first token of each text, which may be there several times."""
        if self.mask is None:
            return torch.zeros(batch, dtype=torch.int64)
        first = self.mask.to(torch.uint8).argmax(1).cpu()
        return first.repeat_interleave(batch // len(first))

    def columns(self, batch: int, length: int) -> Tensor:
        """Indicators of the whole text and of each span, ``(batch, place, 1 + name)``, float32."""
        padding = self.padding(batch)
        columns = torch.zeros(batch, length, 1 + len(self.names), dtype=torch.float32)
        columns[..., 0] = (torch.arange(length) >= padding[:, None]).float()
        for row in range(batch if self.spans else 0):
            for name, tokens in self.spans[row * len(self.spans) // batch].items():
                columns[row, torch.from_numpy(tokens) + padding[row], 1 + self.names.index(name)] = 1.0
        return columns

    def _read(self, given: Any) -> list[dict[str, np.ndarray]]:
        if given is None:
            return []
        if self.ids is None:
            raise AttnscopeError(
                "spans are of the tokens of a prompt, and the model was given none: give input_ids"
            )
        texts = range(len(self.ids))
        if callable(given):
            each = [given(self.tokens(text)) for text in texts]
        elif isinstance(given, Mapping):
            each = [given] * len(texts)
        else:
            each = list(given) if isinstance(given, Iterable) else [given] * len(texts)
        if len(each) != len(texts):
            raise AttnscopeError(
                f"spans of {len(each)} prompts were given, and generate() reads {len(texts)}"
            )
        return [_of_text(spans, len(self.tokens(text))) for text, spans in enumerate(each)]


def _of_text(spans: Any, length: int) -> dict[str, np.ndarray]:
    if not isinstance(spans, Mapping):
        raise AttnscopeError(f'spans are {spans!r:.60}; expected them by name, as {{"question": (3, 12)}}')
    named = cast("Mapping[Any, Any]", spans).items()
    return {_name(name): _tokens(name, value, length) for name, value in named}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or name in _TAKEN:
        raise AttnscopeError(
            f"a span has the name {name!r:.60}; expected another word than {', '.join(_TAKEN)}"
        )
    return name


def _tokens(name: str, value: Any, length: int) -> np.ndarray:
    """Numbers of the tokens of a span."""
    if isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2:  # noqa: PLR2004
        value = slice(*value)
    try:
        if isinstance(value, slice):
            last = [at for at in (value.start, value.stop) if at is not None]
            tokens, outside = np.arange(length)[value], any(not 0 <= at <= length for at in last)
        else:
            tokens = np.unique(np.array(list(value), dtype=np.int64))
            outside = bool(tokens.size) and not (tokens[0] >= 0 and tokens[-1] < length)
    except (TypeError, ValueError) as error:
        raise AttnscopeError(
            f"the span {name!r} is {value!r:.60}; expected its first token and the one after the last, as (3, 12)"
        ) from error
    if outside:
        raise AttnscopeError(f"the span {name!r} goes beyond the prompt, which has {length} tokens")
    return tokens
