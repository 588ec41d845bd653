"""Pairs as a model reads them: token ids, the position that is looked at, and the ids of the answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.checks import shortly
from attnscope.corpus import IdNames, with_marked_spaces
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.faithfulness.passes._pairs import Pair


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Pairs as the model reads them; all as long.

    Attributes
    ----------
    clean, corrupted
        ``(pair, position)``, token ids.
    places
        ``(pair, 1)``: the position whose prediction is looked at.
    answers, wrongs
        ``(pair,)``, token ids.
    tokens, corrupted_tokens
        Tokens of each text, to show.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.faithfulness.passes import Pair
    >>> from transformers import AutoTokenizer
    >>> pair = Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")
    >>> pairs = EncodedPairs.of([pair], AutoTokenizer.from_pretrained(MODEL), masked=True, device=torch.device("cpu"))
    >>> pairs.tokens[0][int(pairs.places[0, 0])], len(pairs), pairs.labels()[4:6]
    ('<mask>', 1, ['␣p/␣d', 'art/ue'])
    """

    clean: Int[Tensor, "pair position"]
    corrupted: Int[Tensor, "pair position"]
    places: Int[Tensor, "pair 1"]
    answers: Int[Tensor, " pair"]
    wrongs: Int[Tensor, " pair"]
    tokens: tuple[tuple[str, ...], ...]
    corrupted_tokens: tuple[tuple[str, ...], ...]

    @classmethod
    def of(
        cls,
        pairs: Iterable[Pair],
        tokenizer: Any,
        *,
        masked: bool,
        device: torch.device,
        numbers: Sequence[int] | None = None,
    ) -> EncodedPairs:
        """Encode pairs; `numbers` say what each is called in an error, by default 1, 2, ...

        Raises
        ------
        AttnscopeError
            If the texts of a pair, or two pairs, differ in their number of tokens, an answer is not one token or both
            are the same, or a masked model's text does not hold one mask, at the same place on both sides.
        """
        pairs = list(pairs)
        if not pairs:
            raise AttnscopeError("found no pair of texts; expected one or more")
        numbered = list(zip(numbers or range(1, len(pairs) + 1), pairs, strict=True))
        rows: list[list[list[int]]] = [[], []]
        places: list[int] = []
        for number, pair in numbered:
            both = [_ids(tokenizer, text, number, masked=masked) for text in (pair.clean, pair.corrupted)]
            if len(both[0]) != len(both[1]):
                raise AttnscopeError(
                    f"pair {number}: the clean text has {len(both[0])} tokens and the corrupted one {len(both[1])}; "
                    "expected as many, so that a position means the same in both: reword one"
                )
            if both[0] == both[1]:
                raise AttnscopeError(
                    f"pair {number}: clean and corrupted text are the same tokens; expected a difference to be carried"
                )
            for row, ids in zip(rows, both, strict=True):
                row.append(ids)
            places.append(_place(both, tokenizer, number, masked=masked))
        lengths = {len(row) for row in rows[0]}
        if len(lengths) > 1:
            raise AttnscopeError(
                f"pairs have {min(lengths)} to {max(lengths)} tokens; expected all as long, so that positions can be "
                "averaged: give those of one length at a time"
            )
        answers, wrongs = (
            [
                one_token(tokenizer, getattr(pair, name), f"pair {number}: the {name}")
                for number, pair in numbered
            ]
            for name in ("answer", "wrong")
        )
        for (number, pair), answer, wrong in zip(numbered, answers, wrongs, strict=True):
            if answer == wrong:
                raise AttnscopeError(
                    f"pair {number}: answer and wrong are the same token ({pair.answer!r}); expected two answers "
                    "between which the model decides"
                )

        def tensor(values: Sequence[Any]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        names = IdNames(tokenizer)
        shown = [tuple(names.of(row) for row in side) for side in rows]
        return cls(
            tensor(rows[0]), tensor(rows[1]), tensor(places)[:, None], tensor(answers), tensor(wrongs), *shown
        )

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.clean)

    def turned(self) -> EncodedPairs:
        """Clean and corrupted texts in each other's place; the answers stay."""
        return replace(self, clean=self.corrupted, corrupted=self.clean)

    def difference(
        self, logits: Float[Tensor, "*variant pair place vocabulary"]
    ) -> Float[Tensor, "*variant pair"]:
        """Logit of the answer minus that of the wrong one, of logits at the position that is looked at."""
        last = logits[..., 0, :]
        index = torch.stack([self.answers, self.wrongs], -1).expand(*last.shape[:-1], 2)
        right, wrong = last.gather(-1, index).unbind(-1)
        return right - wrong

    def labels(self) -> list[str]:
        """What to call each position: its token; clean/corrupted where they differ; "…" where pairs differ.

        Examples
        --------
        >>> ids = torch.zeros(2, 2, dtype=torch.int64)
        >>> tokens = (("It", " was"), ("He", " was")), (("It", " is"), ("He", " is"))
        >>> EncodedPairs(ids, ids, ids[:, :1], ids[0], ids[0], *tokens).labels()
        ['It…', '␣was/␣is']
        """
        return position_labels(self.tokens, self.corrupted_tokens)


def position_labels(clean: Sequence[Sequence[str]], corrupted: Sequence[Sequence[str]]) -> list[str]:
    """What to call each position of pairs that are all as long, ``(pair, position)``: see `EncodedPairs.labels`.

    Parameters
    ----------
    clean, corrupted
        Tokens of each pair's clean text and of its corrupted one.

    Examples
    --------
    >>> position_labels([["The", " cat"], ["A", " cat"]], [["The", " dog"], ["A", " dog"]])
    ['The…', '␣cat/␣dog']
    """
    labels: list[str] = []
    for own, other in zip(zip(*clean, strict=True), zip(*corrupted, strict=True), strict=True):
        first = "/".join(dict.fromkeys(map(with_marked_spaces, (own[0], other[0]))))
        labels.append(first if len(set(zip(own, other, strict=True))) == 1 else f"{first}…")
    return labels


def token_count(pair: Pair, tokenizer: Any, number: int, *, masked: bool) -> int:
    """Tokens of a pair's clean text.

    Parameters
    ----------
    pair
        The pair of texts.
    tokenizer
        Tokenizer of the model.
    number
        Number of the pair, for errors.
    masked
        Whether the model is a masked language model, which is asked behind a mask.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from attnscope.faithfulness.passes import Pair
    >>> from transformers import AutoTokenizer
    >>> pair = Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")
    >>> token_count(pair, AutoTokenizer.from_pretrained(MODEL), 1, masked=True)
    11
    """
    return len(_ids(tokenizer, pair.clean, number, masked=masked))


def _ids(tokenizer: Any, text: str, number: int, *, masked: bool) -> list[int]:
    """Token ids with the special tokens before a text, and for a masked model those after it."""
    ids: list[int] = tokenizer(text)["input_ids"]
    end = getattr(tokenizer, "eos_token_id", None)
    if not masked and ids and end is not None and ids[-1] == end and ids[-1] != ids[0]:
        ids = ids[:-1]  # nothing is said after the end
    if not ids:
        raise AttnscopeError(
            f"pair {number}: the tokenizer makes no token of {text!r}; expected at least one"
        )
    return ids


def _place(both: list[list[int]], tokenizer: Any, number: int, *, masked: bool) -> int:
    if not masked:
        return len(both[0]) - 1
    places = [np.flatnonzero(np.array(ids) == tokenizer.mask_token_id).tolist() for ids in both]
    if len(places[0]) != 1 or places[0] != places[1]:
        raise AttnscopeError(
            f"pair {number}: found {len(places[0])} and {len(places[1])} masks; expected one {tokenizer.mask_token} in "
            "each text, at the same position"
        )
    return int(places[0][0])


def one_token(tokenizer: Any, word: str, what: str) -> int:
    """The token that a text is, or that is named so.

    Parameters
    ----------
    tokenizer
        Tokenizer of the model.
    word
        Text, or name, of the token.
    what
        Words for what it is for, for the error.

    Raises
    ------
    AttnscopeError
        If it is several tokens, and no token has that name.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> tokenizer = AutoTokenizer.from_pretrained(MODEL)
    >>> names = tokenizer.convert_ids_to_tokens([one_token(tokenizer, " of", ""), one_token(tokenizer, ".", "")])
    >>> names  # alone, a full stop would get a space before it, which is a token of its own
    ['▁of', '.']
    """
    ids: list[int] = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) == 1:
        return int(ids[0])
    known: dict[str, int] = tokenizer.get_vocab()
    if word in known:
        return int(known[word])
    names = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(ids)))
    raise AttnscopeError(
        f"{what} {shortly(word)} is {len(ids)} tokens ({shortly(names)}); expected one (perhaps with a space before "
        "it, or without)"
    )
