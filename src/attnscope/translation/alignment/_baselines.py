"""What an error rate would be without looking at any word: links on the diagonal, links to random words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import norm

from attnscope._numbers import percent
from attnscope.translation.alignment._links import Gold, Links, score_alignments, within

_BELOW = 0.01  # of the level that random links stay above


@dataclass(frozen=True)
class Baselines:
    """Error rates to hold an alignment's against.

    Attributes
    ----------
    diagonal
        AER if each target word were linked to the source word at the same place of its sentence.
    chance
        Mean AER of the same number of links for each target word, to source words drawn at random.
    chance_level
        The AER that such random links go below in 1 of 100, by the normal distribution; where the best of several
        heads was chosen, the best of as many random ones.
    heads
        Number of heads of which the best was chosen; 1 where none was.

    The rates lie between 0 and 1, NaN where there are neither links nor sure links.

    Examples
    --------
    >>> from attnscope.translation.alignment import Gold, baselines
    >>> straight = [frozenset({(0, 0), (1, 1), (2, 2)})]
    >>> found = baselines(straight, Gold(straight, straight), [(3, 3)])
    >>> found.diagonal, round(found.chance, 3)  # here the diagonal makes no error
    (0.0, 0.667)
    """

    diagonal: float
    chance: float
    chance_level: float
    heads: int = 1

    def in_words(self, error_rate: float) -> str:
        """What stands beside an error rate wherever one is shown.

        Parameters
        ----------
        error_rate
            Error rate of the links themselves.

        Examples
        --------
        >>> from attnscope.translation.alignment import Baselines
        >>> Baselines(0.503, 0.881, 0.845, heads=8).in_words(0.827)
        'the diagonal alone is better, 50.3%; random words 88.1%, the best of 8 such heads below 84.5% in 1 of 100'
        """
        better = "the diagonal alone is better," if self.diagonal < error_rate else "the diagonal alone"
        best = f"the best of {self.heads} such heads " if self.heads > 1 else ""
        return (
            f"{better} {percent(self.diagonal)}; random words {percent(self.chance)}, "
            f"{best}below {percent(self.chance_level)} in 1 of 100"
        )


def baselines(
    aligned: Sequence[Links], gold: Gold, lengths: Sequence[tuple[int, int]], chosen_of: int = 1
) -> Baselines:
    """Error rates that need no model: of the diagonal, and of random links.

    A target word with k links in a sentence of m source words, of which s are sure and p possible (the sure ones
    among them), adds k (s + p) / m to |A∩S| + |A∩P| in the mean, as k draws without replacement do.

    Parameters
    ----------
    aligned
        Links of each sentence pair that were found.
    gold
        People's links.
    lengths
        Number of source and target words of each pair.
    chosen_of
        Number of heads of which the best was taken.

    Examples
    --------
    >>> from attnscope.translation.alignment import Gold, baselines
    >>> swapped = [frozenset({(0, 1), (1, 0)})]
    >>> found = baselines(swapped, Gold(swapped, swapped), [(2, 2)])
    >>> found.diagonal, found.chance
    (1.0, 0.5)
    """
    diagonal = [
        frozenset(
            ((2 * target + 1) * sources // (2 * targets), target) for target in range(targets) if sources
        )
        for sources, targets in lengths
    ]
    mean = variance = 0.0
    for links, sure, possible, of_pair in zip(aligned, gold.sure, gold.possible, lengths, strict=True):
        certain = Counter(target for _, target in within(sure, *of_pair))
        both = Counter(target for _, target in within(sure | possible, *of_pair))
        for target, drawn in Counter(target for _, target in links).items():
            of_word = _drawn(drawn, of_pair[0], certain[target], both[target])
            mean, variance = mean + of_word[0], variance + of_word[1]
    whole = sum(map(len, aligned)) + sum(map(len, gold.sure))
    deviations = float(norm.ppf((1 - _BELOW) ** (1 / chosen_of)))
    return Baselines(
        score_alignments(diagonal, gold.sure, gold.possible).error_rate,
        1 - mean / whole if whole else math.nan,
        1 - (mean + deviations * math.sqrt(variance)) / whole if whole else math.nan,
        chosen_of,
    )


def _drawn(links: int, words: int, sure: int, possible: int) -> tuple[float, float]:
    """Mean and variance of a sum of 2 for each sure and 1 for each other possible word, over distinct random words."""
    mean = (sure + possible) / words
    spread = (3 * sure + possible) / words - mean**2  # 4 sure + (possible - sure)
    finite = (words - links) / (words - 1) if words > 1 else 0.0
    return links * mean, links * spread * finite
