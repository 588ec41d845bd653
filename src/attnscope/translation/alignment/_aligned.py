"""What all pairs of a parallel text come to: the best head, the score, and pairs to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope.translation.alignment._baselines import Baselines, baselines
from attnscope.translation.alignment._forcing import forced_alignment
from attnscope.translation.alignment._links import (
    AlignmentScore,
    Gold,
    Links,
    links_of_line,
    score_alignments,
    within,
)
from attnscope.translation.alignment._word_weights import WordAlignment
from attnscope.translation.alignment._work import Work

MOST_WORDS = 40  # of a sentence in a picture


@dataclass(frozen=True, eq=False)
class ShownPair:
    """A sentence pair to look at: its weights, the links read off them, and people's where there are any.

    Its error rate is NaN where there are none.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.translation.alignment import ShownPair, WordAlignment
    >>> none, link = frozenset(), frozenset({(0, 0)})
    >>> words = WordAlignment(["猫"], ["cat"], np.ones((1, 1)))
    >>> pair = ShownPair(1, words, link, none, none, float("nan"))
    >>> [(pair.words.source[source], pair.words.target[target]) for source, target in pair.found]
    [('猫', 'cat')]
    """

    line: int  # from 1
    words: WordAlignment
    found: Links
    sure: Links
    possible: Links
    error_rate: float


@dataclass(frozen=True, eq=False)
class Aligned:
    """A parallel text aligned by a model.

    Attributes
    ----------
    model
        Its name.
    layer, head
        Whose weights were read; None for the mean of all.
    chosen_on_gold
        Whether layer and head are those of the lowest error rate on the gold alignments themselves.
    links
        For each sentence pair its links.
    score
        Against the gold alignments.
    heads
        ``error_rate``, ``precision`` and ``recall (layer, head)``, where every head was tried.
    outside
        How many gold links point past the end of their sentence.
    pairs
        Some sentence pairs to look at, as many as were asked for; with gold, evenly from the best to the worst.
    signature
        JSON: model, texts, settings and versions.
    task
        What a task says that is done before others are; there are no links then. Else empty.
    baselines
        Error rates that need no model, where there are gold alignments: of the diagonal, and of random links.
    passed_over
        How many sentence pairs are none to look at, as a side has no word, or more than 40.

    Examples
    --------
    >>> from attnscope.translation.alignment import Aligned, pharaoh
    >>> aligned = Aligned("m", 1, None, False, [frozenset({(1, 0), (0, 1)})], None, None, 0, [], "{}")
    >>> [pharaoh(links) for links in aligned.links], aligned.score is None  # no gold alignments were given
    (['0-1 1-0'], True)
    """

    model: str
    layer: int | None
    head: int | None
    chosen_on_gold: bool
    links: list[Links]
    score: AlignmentScore | None
    heads: xr.Dataset | None
    outside: int
    pairs: list[ShownPair]
    signature: str
    task: str = ""
    baselines: Baselines | None = None
    passed_over: int = 0


def aligned_of(work: Work, measured: xr.Dataset | None, shown: int) -> Aligned:
    """What the links of all pairs come to; None stands for no pairs.

    Parameters
    ----------
    measured
        Every unit of `Work.units`, in order.
    shown
        How many pairs to keep with their weights.
    """
    layer, head, gold = work.layer, work.head, work.gold
    every = None if measured is None or not work.every_head else measured["links_of_heads"].values
    heads = None if every is None or gold is None else _judged(every, gold)
    if heads is not None and every is not None and work.chooses:
        layer, head = _best(heads)
        lines = every[:, layer, head]
    else:
        lines = [] if measured is None else measured["links"].values
    alignments = [links_of_line(str(line)) for line in lines]
    names = ("source_words", "target_words")
    lengths = (
        [] if measured is None else [*zip(*(measured[name].values.tolist() for name in names), strict=True)]
    )
    return Aligned(
        work.identity["name"],
        layer,
        head,
        work.chooses,
        alignments,
        None if gold is None else score_alignments(alignments, gold.sure, gold.possible),
        heads,
        0 if gold is None else _outside(gold, lengths),
        _pairs(work, alignments, lengths, layer, head, shown),
        work.signature(layer, head).to_json(),
        baselines=None
        if gold is None
        else baselines(
            alignments, gold, lengths, heads["error_rate"].size if heads is not None and work.chooses else 1
        ),
        passed_over=sum(not _fits(of_pair) for of_pair in lengths),
    )


def _judged(every: np.ndarray, gold: Gold) -> xr.Dataset:
    """Error rate, precision and recall of every head, from its links ``(pair, layer, head)``."""
    layers, heads = every.shape[1:]
    names = ("error_rate", "precision", "recall")
    rates = {name: np.empty((layers, heads)) for name in names}
    for at in np.ndindex(layers, heads):
        made = [links_of_line(str(line)) for line in every[:, *at]]
        score = score_alignments(made, gold.sure, gold.possible)
        for name in names:
            rates[name][at] = getattr(score, name)
    return xr.Dataset(
        {name: (("layer", "head"), values) for name, values in rates.items()},
        coords={"layer": range(layers), "head": range(heads)},
    )


def _best(heads: xr.Dataset) -> tuple[int, int]:
    rates = heads["error_rate"].values
    # 2 is above every error rate: a head that has none is never the best; the first of equals is
    layer, head = np.unravel_index(int(np.nanargmin(np.where(np.isnan(rates), 2, rates))), rates.shape)
    return int(layer), int(head)


def _outside(gold: Gold, lengths: list[tuple[int, int]]) -> int:
    pairs = zip(gold.possible, lengths, strict=True)
    return sum(len(possible) - len(within(possible, *of_pair)) for possible, of_pair in pairs)


def _fits(lengths: tuple[int, int]) -> bool:
    """Whether a pair with so many words is one to look at."""
    return min(lengths) > 0 and max(lengths) <= MOST_WORDS


def _pairs(
    work: Work,
    alignments: list[Links],
    lengths: list[tuple[int, int]],
    layer: int | None,
    head: int | None,
    shown: int,
) -> list[ShownPair]:
    """Weights of some pairs, from a second pass over these alone: they are never held for the whole text."""
    short = [i for i, of_pair in enumerate(lengths) if _fits(of_pair)]
    nothing: Links = frozenset()
    sure = work.gold.sure if work.gold else [nothing] * len(alignments)
    possible = work.gold.possible if work.gold else [nothing] * len(alignments)
    rates = dict.fromkeys(short, float("nan"))
    if work.gold is not None:
        rates = {i: score_alignments([alignments[i]], [sure[i]], [possible[i]]).error_rate for i in short}
        short = sorted((i for i in short if not np.isnan(rates[i])), key=lambda i: rates[i])
        at = np.unique(np.linspace(0, len(short) - 1, min(shown, len(short))).round().astype(int))
        short = [short[i] for i in at]
    short = short[:shown]
    if not short:
        return []
    weights = forced_alignment(
        work.model,
        work.tokenizer,
        [work.sources[i] for i in short],
        [work.targets[i] for i in short],
        layer=layer,
        head=head,
        **work.run,
    )
    return [
        ShownPair(i + 1, words, alignments[i], sure[i], possible[i], rates[i])
        for i, words in zip(short, weights, strict=True)
    ]
