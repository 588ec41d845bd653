"""Batches of pairs: of about equal size in tokens, almost without padding, the same for any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnscope.errors import AttnscopeError
from attnscope.models import IGNORED
from attnscope.translation import ParallelText, encode_lines

FILL = 0.98  # share of the budget aimed at, as parts do not divide evenly
FEW = 64  # batches, up to which halving leaves too much padding and every cut is tried
SLACK = 1.25  # cells of a side, in budgets, beyond which a batch is split for its padding


@dataclass(frozen=True)
class EncodedText:
    """Pairs as token ids.

    Attributes
    ----------
    source, target : list of list of int
        Ids of each pair, ``</s>`` included.
    index : list of int
        Which pair of the parallel text each one is.
    left_out : dict of str to int
        How many pairs were left out, by reason: those of the parallel text, and ``too long``.
    """

    source: list[list[int]]
    target: list[list[int]]
    index: list[int]
    left_out: dict[str, int]

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.index)

    def lengths(self) -> Int[np.ndarray, "pair side"]:
        """Tokens of source and target of each pair."""
        pairs = zip(self.source, self.target, strict=True)
        return np.array([(len(source), len(target)) for source, target in pairs], np.int64).reshape(-1, 2)


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, text: ParallelText, *, longest: int | None = None
) -> EncodedText:
    """Encode both sides, and leave out the pairs that are too long.

    A pair is never cut: a cut source and its whole translation do not mean the same.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerFast
        From `train_subwords`.
    text : ParallelText
        The pairs.
    longest : int, optional
        Most tokens that either side may have, ``</s>`` included; without it all pairs are kept.

    Returns
    -------
    EncodedText
        The pairs that are kept, in order.

    Raises
    ------
    AttnscopeError
        Every pair is too long.

    Examples
    --------
    >>> from attnscope.translation import ParallelText
    >>> from attnscope.translation import train_subwords
    >>> text = ParallelText(["aa", "aa ab ab ab"], ["bb", "bb"])
    >>> tokenizer = train_subwords([*text.source, *text.target], 270)
    >>> encode_pairs(tokenizer, text, longest=3).left_out
    {'too long': 1}
    """
    source, target = encode_lines(tokenizer, text.source), encode_lines(tokenizer, text.target)
    kept = [
        i
        for i, pair in enumerate(zip(source, target, strict=True))
        if longest is None or max(map(len, pair)) <= longest
    ]
    if not kept:
        raise AttnscopeError(
            f"every one of {len(text)} pairs has more than {longest} tokens on a side; "
            "expected shorter ones: allow longer pairs, or divide the lines into sentences"
        )
    left_out = dict(text.left_out)
    if len(kept) < len(text):
        left_out["too long"] = len(text) - len(kept)
    return EncodedText([source[i] for i in kept], [target[i] for i in kept], kept, left_out)


def epoch_batches(
    lengths: Int[np.ndarray, "pair side"], budget: int, seed: int, epoch: int
) -> list[Int[np.ndarray, " _"]]:
    """Divide all pairs into the batches of one epoch.

    The pairs are halved again and again, by the length of the source or of the target, whichever leaves fewer
    cells, until each part fits the budget. Where there are at most 64 batches, they are divided not at half but where
    the fewest cells are left. Pairs of equal lengths are drawn at random, and the batches come in
    random order.

    Parameters
    ----------
    lengths
        Tokens of source and target of each pair.
    budget
        Most tokens in a batch, each pair counted by its longer side; so a batch has at most `budget` target tokens,
        and most have almost as many. Cells, padding included, are at most 1.25 times as many on each side.
        A pair that is longer than the budget is a batch of its own.
    seed, epoch
        The batches are a function of both and of the lengths alone, so a run that was stopped in the
        middle of an epoch goes on at the same place of the same list.

    Returns
    -------
    list of array of int
        Indices of the pairs of each batch; each pair is in one batch.

    Raises
    ------
    AttnscopeError
        No pairs, or a budget below 1.

    Examples
    --------
    >>> lengths = np.array([[3, 3], [9, 9], [3, 3], [9, 9], [4, 3]])
    >>> sorted(sorted(batch.tolist()) for batch in epoch_batches(lengths, 20, seed=0, epoch=0))
    [[0, 2, 4], [1, 3]]
    """
    if budget < 1 or not len(lengths):
        raise AttnscopeError(
            f"found {len(lengths)} pairs and a budget of {budget} tokens; expected at least one pair and one "
            "token: give some text, and 2048 or 8192 tokens, for example"
        )
    generator = np.random.default_rng((seed, epoch))
    # sorting by one of these orders by one side, then by the other, then at random
    scale = int(lengths.max()) + 1
    chance = generator.random(len(lengths))
    source, target = lengths.T
    keys = source * scale + target + chance, target * scale + source + chance
    longer = lengths.max(1)
    batches_wanted = ceil(int(longer.sum()) / (FILL * budget))
    parts = [(np.arange(len(lengths)), batches_wanted)]
    batches: list[np.ndarray] = []
    while parts:
        part, count = parts.pop()
        cells = len(part) * int(longer[part].max())
        fits = int(longer[part].sum()) <= budget and cells <= SLACK * budget
        if len(part) == 1 or (count == 1 and fits):
            batches.append(part)
        else:
            parts.extend(_divide(part, max(2, count), lengths, keys, every=batches_wanted <= FEW))
    return [batches[i] for i in generator.permutation(len(batches))]


def _divide(
    part: np.ndarray, count: int, lengths: np.ndarray, keys: tuple[np.ndarray, np.ndarray], *, every: bool
) -> list[tuple[np.ndarray, int]]:
    """Divide what makes `count` batches into two parts, by the side and at the cut that leave the fewest cells."""
    ways: list[tuple[int, np.ndarray, int, int]] = []
    for key in keys:
        order = part[np.argsort(key[part])]
        reached = np.cumsum(lengths[order].max(1))
        for left in range(1, count) if every else [count // 2]:
            cut = int(np.abs(reached[:-1] - reached[-1] * (left / count)).argmin()) + 1
            cells = sum(len(half) * int(lengths[half].max(0).sum()) for half in (order[:cut], order[cut:]))
            ways.append((cells, order, cut, left))
    _, order, cut, left = min(ways, key=lambda way: way[0])
    return [(order[:cut], left), (order[cut:], count - left)]


def split_batch(
    batch: Int[np.ndarray, " batch"], lengths: Int[np.ndarray, "pair side"], world: int
) -> list[Int[np.ndarray, " _"]]:
    """Divide one batch among processes, so that together they see exactly this batch.

    Parameters
    ----------
    batch
        From `epoch_batches`; consecutive pairs have similar lengths.
    lengths
        Tokens of source and target of each pair.
    world
        How many processes.

    Returns
    -------
    list of array of int
        One part for each process, in order, of about as many tokens; they differ by less than two pairs. Where the
        batch has fewer pairs than there are processes, some parts are empty.

    Examples
    --------
    >>> lengths = np.array([[5, 6], [6, 6], [12, 12]])
    >>> [part.tolist() for part in split_batch(np.array([0, 1, 2]), lengths, 2)]
    [[0, 1], [2]]
    """
    reached = np.cumsum(lengths[batch].max(1))
    shares = reached[-1] * np.arange(1, world) / world
    return np.split(batch, np.searchsorted(reached, shares, side="right"))


def fullness(lengths: Int[np.ndarray, "pair side"], batches: Sequence[Int[np.ndarray, " _"]]) -> float:
    """Share of the cells of all batches, source and target, that hold a token and not padding.

    Examples
    --------
    >>> fullness(np.array([[1, 2], [2, 2]]), [np.array([0, 1])])
    0.875
    """
    cells = sum(len(batch) * int(lengths[batch].max(0).sum()) for batch in batches)
    return sum(int(lengths[batch].sum()) for batch in batches) / cells


def collate(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]] | None = None, *, pad_id: int = 0
) -> dict[str, Int[Tensor, "pair position"]]:
    """Put pairs side by side, padded on the right to the longest.

    Parameters
    ----------
    source
        Token ids, ``</s>`` included; at least one line.
    target
        As many lines; left out for translating.
    pad_id
        Token id for padding of the source.

    Returns
    -------
    dict of str to Tensor
        ``input_ids`` and ``attention_mask`` of shape ``(pair, source position)``, the mask 0 on padding;
        with a target ``labels`` of shape ``(pair, target position)``, -100 on padding.

    Raises
    ------
    AttnscopeError
        No line, or not as many on both sides.

    Examples
    --------
    >>> batch = collate([[7, 2], [8, 9, 2]], [[5, 2], [2]])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
    ([[7, 2, 0], [8, 9, 2]], [[1, 1, 0], [1, 1, 1]], [[5, 2], [2, -100]])
    """
    if not source or (target is not None and len(target) != len(source)):
        raise AttnscopeError(
            f"found {len(source)} sources and {'no' if target is None else len(target)} targets for a batch; "
            "expected at least one, and as many on both sides"
        )
    batch = {"input_ids": _pad(source, pad_id), "attention_mask": _pad([[1] * len(ids) for ids in source], 0)}
    if target is not None:
        batch["labels"] = _pad(target, IGNORED)
    return batch


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.int64)
