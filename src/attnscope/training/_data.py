"""What a training reads: batches of pairs or of masked windows, the same for the same seed."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnscope.errors import AttnscopeError
from attnscope.training._batches import EncodedText, collate, encode_pairs, epoch_batches, split_batch
from attnscope.training._segmentation import Segmenter
from attnscope.training.config import TrainConfig
from attnscope.translation import (
    ParallelText,
    encode_lines,
    generate_task,
    is_unsegmented,
    read_parallel,
    train_subwords,
)

Batch = dict[str, Tensor]
_BY_SPACES = ("13a", "intl")  # tokenizers of BLEU that find no word where there is no space
HELD_OUT = 500  # pairs that are set aside where no validation text is given


class TrainingData(ABC):
    """Texts as tokens, and how they are cut into batches."""

    tokenizer: Any
    left_out: dict[str, int]

    @abstractmethod
    def epoch(self, number: int) -> list[np.ndarray]:
        """Members of each batch of an epoch, in order."""

    @abstractmethod
    def parts(self, members: np.ndarray, count: int, seed: int) -> list[Batch | None]:
        """The batch of these members in `count` parts, None where one is empty; `seed` decides what is random in it."""

    @abstractmethod
    def validation(self) -> list[Batch]:
        """Batches of the held-out text, always the same."""

    @abstractmethod
    def sha256(self) -> str:
        """Hash of the texts, by which a training knows that it goes on with its own."""


@dataclass(eq=False)
class Pairs(TrainingData):
    """Parallel text.

    Attributes
    ----------
    train
        Encoded pairs.
    text
        What they were encoded from; `train.index` says which pair of it each one is.
    valid
        Texts to be translated.
    """

    config: TrainConfig
    train: EncodedText
    text: ParallelText
    valid: ParallelText
    tokenizer: Any

    def __post_init__(self) -> None:
        self.left_out = self.train.left_out
        self.lengths = self.train.lengths()
        share = self.config.bpe_dropout
        self.segmenter = Segmenter(self.tokenizer, share) if share else None

    def epoch(self, number: int) -> list[np.ndarray]:
        """Batches of about `batch_tokens` target tokens, of like lengths."""
        return epoch_batches(self.lengths, self.config.batch_tokens, self.config.seed, number)

    def parts(self, members: np.ndarray, count: int, seed: int) -> list[Batch | None]:
        """Padded tokens of these pairs, divided by their lengths without dropout."""
        return [
            collate(*zip(*(self._pair(i, seed) for i in part.tolist()), strict=True)) if len(part) else None
            for part in split_batch(members, self.lengths, count)
        ]

    def _pair(self, member: int, seed: int) -> tuple[list[int], list[int]]:
        """Tokens of source and target; where merges are left out, a function of the seed and the pair alone."""
        plain = self.train.source[member], self.train.target[member]
        if self.segmenter is None:
            return plain
        line, draw = self.train.index[member], Random(f"{seed} {member}")
        source, target = self.text.source[line], self.text.target[line]
        new = self.segmenter.encode(source, draw), self.segmenter.encode(target, draw)
        return new if max(map(len, new)) <= self.config.longest else plain

    def validation(self) -> list[Batch]:
        """Batches of the validation pairs, always cut as the tokenizer does it."""
        encoded = encode_pairs(self.tokenizer, self.valid, longest=self.config.longest)
        batches = epoch_batches(encoded.lengths(), self.config.batch_tokens, 0, 0)
        return [
            collate([encoded.source[i] for i in part], [encoded.target[i] for i in part]) for part in batches
        ]

    def sha256(self) -> str:
        """Of the tokens of all pairs, and of the text for validation."""
        tokens = json.dumps([self.train.source, self.train.target])
        return hashlib.sha256((tokens + self.valid.sha256()).encode()).hexdigest()


@dataclass(eq=False)
class MaskedWindows(TrainingData):
    """Plain text, cut into windows of `longest` tokens that start anywhere; some tokens are masked.

    Of the chosen tokens 80% become the mask, 10% another token, 10% stay (Devlin et al. 2019, section 3.1).

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> from transformers import AutoTokenizer
    >>> tokenizer = AutoTokenizer.from_pretrained(MODEL)
    >>> ids = np.arange(10, 90)
    >>> data = MaskedWindows(TrainConfig(model="masked-lm", longest=12, batch_tokens=24), ids, ids, tokenizer)
    >>> batches = data.epoch(0)
    >>> data.body, [len(members) for members in batches]  # 80 tokens, two windows of 10 and their ends at a time
    (10, [2, 2, 2, 2])
    >>> (part,) = data.parts(batches[0], 1, seed=0)
    >>> part["input_ids"].shape, bool((part["labels"] == -100).any())  # what is not masked is not asked for
    (torch.Size([2, 12]), True)
    """

    config: TrainConfig
    train_ids: np.ndarray
    valid_ids: np.ndarray
    tokenizer: Any
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        for name, ids in (("training", self.train_ids), ("validation", self.valid_ids)):
            if len(ids) < self.body:
                raise AttnscopeError(
                    f"the {name} text has {len(ids)} tokens; expected {self.body} or more: give more, or a "
                    "smaller 'longest'"
                )

    @property
    def body(self) -> int:
        """Tokens of a window between its two ends."""
        return self.config.longest - 2

    def epoch(self, number: int) -> list[np.ndarray]:
        """Starts of windows, in batches of `batch_tokens` tokens."""
        rng = np.random.default_rng((self.config.seed, number))
        count = len(self.train_ids) // self.body
        starts = rng.integers(0, len(self.train_ids) - self.body + 1, count)
        size = max(1, self.config.batch_tokens // self.config.longest)
        return [starts[i : i + size] for i in range(0, count, size)]

    def parts(self, members: np.ndarray, count: int, seed: int) -> list[Batch | None]:
        """Windows that start there, with some tokens masked."""
        whole = self._masked(self.train_ids, members, seed)
        rows = np.array_split(np.arange(len(members)), count)
        return [
            {name: values[part] for name, values in whole.items()} if len(part) else None for part in rows
        ]

    def validation(self) -> list[Batch]:
        """All of the held-out text, window by window, masked the same way each time."""
        starts = np.arange(0, len(self.valid_ids) - self.body + 1, self.body)
        size = max(1, self.config.batch_tokens // self.config.longest)
        return [self._masked(self.valid_ids, starts[i : i + size], i) for i in range(0, len(starts), size)]

    def sha256(self) -> str:
        """Of all tokens."""
        return hashlib.sha256(self.train_ids.tobytes() + b"|" + self.valid_ids.tobytes()).hexdigest()

    def _masked(self, ids: np.ndarray, starts: np.ndarray, seed: int) -> Batch:
        body = torch.from_numpy(ids[starts[:, None] + np.arange(self.body)])
        first, last = (torch.full((len(starts), 1), end) for end in self.ends)
        window = torch.cat([first, body, last], 1)
        draw = torch.Generator().manual_seed(seed)
        chosen = torch.rand(window.shape, generator=draw, dtype=torch.float32) < self.config.mask_share
        chosen[:, [0, -1]] = False
        chosen[:, 1] |= ~chosen.any(1)  # every window has something to say
        how = torch.rand(window.shape, generator=draw, dtype=torch.float32)
        other = torch.randint(len(self.tokenizer), window.shape, generator=draw)
        given = torch.where(chosen & (how < 0.8), self.tokenizer.mask_token_id, window)  # noqa: PLR2004
        given = torch.where(chosen & (how >= 0.9), other, given)  # noqa: PLR2004
        return {
            "input_ids": given,
            "attention_mask": torch.ones_like(given),
            "labels": window.masked_fill(~chosen, -100),
        }

    @property
    def ends(self) -> tuple[int, int]:
        """Tokens at the start and at the end of a window."""
        return self.tokenizer.bos_token_id, self.tokenizer.eos_token_id


def read_data(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> TrainingData:
    """Read the texts that a configuration names, and learn their vocabulary if there is none yet.

    Parameters
    ----------
    config
        Settings. Without any text a generated task is taken.
    tokenizer
        From an earlier start of the same training.

    Raises
    ------
    AttnscopeError
        For texts that cannot be read or that are too short.

    Examples
    --------
    >>> from attnscope.training.config import read_config
    >>> data = read_data(read_config(task_pairs=100, task_longest=8, vocabulary=320))
    >>> sum(len(members) for members in data.epoch(0)), len(data.tokenizer)
    (100, 320)
    """
    return _masked(config, tokenizer) if config.model == "masked-lm" else _pairs(config, tokenizer)


def _pairs(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> Pairs:
    train, valid = (text.joined(config.join, config.seed) for text in training_pairs(config))
    if config.bleu_tokenizer in _BY_SPACES and is_unsegmented(valid.target):
        raise AttnscopeError(
            f"the validation target has no spaces between words, so that BLEU with {config.bleu_tokenizer} finds none: "
            "choose --bleu-tokenizer ja-mecab, zh or char"
        )
    if tokenizer is None:
        tokenizer = train_subwords(
            [*train.source, *train.target], config.vocabulary, lowercase=config.lowercase
        )
    tokenizer.model_max_length = config.longest
    encoded = encode_pairs(tokenizer, train, longest=config.longest)
    return Pairs(config, encoded, train, valid, tokenizer)


def training_pairs(config: TrainConfig) -> tuple[ParallelText, ParallelText]:
    """Training and validation pairs, not joined yet; without validation text, the last pairs are set aside.

    Examples
    --------
    >>> from attnscope.training.config import read_config
    >>> [len(text) for text in training_pairs(read_config(task_pairs=100))]
    [100, 10]
    """
    if config.source is None:
        longest = config.task_longest
        return generate_task(config.task_pairs, config.seed, longest), generate_task(
            min(HELD_OUT, config.task_pairs // 10), config.seed, longest, held_out=True
        )
    first, _, second = config.sides.partition(",")
    sides = first.strip(), second.strip()
    train = read_parallel(config.source, config.target, sides=sides)
    if config.valid_source is None:
        return _set_aside(train, min(HELD_OUT, len(train) // 10))
    return train, read_parallel(config.valid_source, config.valid_target, sides=sides)


def _set_aside(text: ParallelText, count: int) -> tuple[ParallelText, ParallelText]:
    if count < 1:
        raise AttnscopeError(f"found {len(text)} pairs; expected 10 or more: give more text")
    cut = len(text) - count
    return (
        ParallelText(text.source[:cut], text.target[:cut], text.left_out),
        ParallelText(text.source[cut:], text.target[cut:]),
    )


def _masked(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> MaskedWindows:
    if config.text is None:
        raise AttnscopeError("a masked language model wants plain text: give 'text'")
    lines = _lines(config.text)
    if config.valid_text is None:
        cut = max(1, len(lines) * 19 // 20)
        lines, held_out = lines[:cut], lines[cut:]
    else:
        held_out = _lines(config.valid_text)
    if tokenizer is None:
        tokenizer = train_subwords(lines, config.vocabulary, lowercase=config.lowercase, masked=True)
    tokenizer.model_max_length = config.longest
    return MaskedWindows(config, _stream(tokenizer, lines), _stream(tokenizer, held_out), tokenizer)


def _lines(path: Path) -> list[str]:
    from attnscope.corpus import Corpus

    texts = Corpus.from_sources([path])
    return [line.strip() for text in texts for line in text.content.splitlines() if line.strip()]


def _stream(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> np.ndarray:
    """All tokens one after the other, without what marks the ends of a line."""
    encoded = encode_lines(tokenizer, lines)
    return np.array([token for line in encoded for token in line if token not in tokenizer.all_special_ids])
