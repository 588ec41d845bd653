"""Subwords at random: a line is cut otherwise each time, so that rare subwords are learned too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Any

from attnscope.translation import BYTES

CACHED = 2**16  # partly merged pieces whose next merges are remembered: some 50 MB


class Segmenter:
    """Byte-pair encoding that leaves out merges at random.

    A piece of text begins as characters. In each step, every merge that is possible is left out with probability
    `dropout`, and of those that remain the one that was learned first is made; the piece is done when none remains
    (Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization", algorithm 1).

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerFast
        From `train_subwords`, not for masked language models.
    dropout : float
        Probability, from 0 (as the tokenizer does it) to 1 (characters, and bytes of those without a token).

    Examples
    --------
    >>> from attnscope.translation import train_subwords
    >>> tokenizer = train_subwords(["The tide is out.", "The tide is in."], 300)
    >>> for dropout in (0.0, 0.3, 1.0):
    ...     ids = Segmenter(tokenizer, dropout).encode("The tide!", Random(0))
    ...     " ".join(tokenizer.convert_ids_to_tokens(ids))
    '▁The ▁tide <0x21> </s>'
    '▁The ▁ t i d e <0x21> </s>'
    '▁ T h e ▁ t i d e <0x21> </s>'
    """

    def __init__(self, tokenizer: Any, dropout: float) -> None:
        self.dropout = dropout
        backend = tokenizer.backend_tokenizer
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self._end: int = tokenizer.eos_token_id
        model = json.loads(backend.to_str())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._merges = {
            (self._ids[first], self._ids[second]): (rank, self._ids[first + second])
            for rank, (first, second) in enumerate(model["merges"])
        }
        self._characters = lru_cache(CACHED)(self._find_characters)
        self._possible = lru_cache(CACHED)(self._find_possible)

    def encode(self, line: str, draw: Random) -> list[int]:
        """Token ids of a line, ``</s>`` included.

        Parameters
        ----------
        line
            Any text.
        draw
            Where chance comes from. With the same state of it, the same line gives the same ids.
        """
        pieces = self._pre_tokenizer.pre_tokenize_str(self._normalizer.normalize_str(line))
        return [*(token for piece, _ in pieces for token in self._merged(piece, draw)), self._end]

    def _merged(self, piece: str, draw: Random) -> tuple[int, ...]:
        tokens = self._characters(piece)
        while True:
            for place, token in self._possible(tokens):
                if draw.random() >= self.dropout:
                    tokens = (*tokens[:place], token, *tokens[place + 2 :])
                    break
            else:
                return tokens

    def _find_characters(self, piece: str) -> tuple[int, ...]:
        return tuple(token for character in piece for token in self._of_character(character))

    def _of_character(self, character: str) -> Iterator[int]:
        if character in self._ids:
            yield self._ids[character]
        else:
            yield from (self._ids[BYTES[byte]] for byte in character.encode())

    def _find_possible(self, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where two tokens can be merged, and into which one: the merge that was learned first comes first."""
        pairs = enumerate(pairwise(tokens))
        possible = sorted((*self._merges[pair], place) for place, pair in pairs if pair in self._merges)
        return [(place, token) for _, token, place in possible]
