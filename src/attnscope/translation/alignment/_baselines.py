"""What an error rate would be without looking at any word: links on the diagonal, links to random words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import norm
from scipy.stats import t as student

from attnscope._documents import LEAST, without_skewness
from attnscope._numbers import percent
from attnscope.translation.alignment._links import Gold, Links, within

_BELOW = 0.01  # of the level that random links stay above
_OUTSIDE = 0.05  # of an interval
_SKEWED, _VERY_SKEWED = 0.1, 0.5  # skewness of an error rate


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
    lower, upper
        95% interval of the alignment's own AER, of sentence pairs like these; NaN where the best of several heads was
        chosen on these very pairs, which none holds for.
    above, below
        The least and the most by which its AER lies above the diagonal's, in the same way; where the best of several
        heads was chosen, an interval for all of them together.

    The rates lie between 0 and 1, NaN where there are neither links nor sure links; intervals are NaN of fewer than 6
    pairs.

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
    lower: float = math.nan
    upper: float = math.nan
    above: float = math.nan
    below: float = math.nan

    def interval(self) -> str:
        """The interval in words, nothing where there is none.

        Examples
        --------
        >>> from attnscope.translation.alignment import Baselines
        >>> Baselines(0.5, 0.9, 0.8, lower=0.21, upper=0.3).interval(), Baselines(0.5, 0.9, 0.8).interval()
        (' (21.0% to 30.0%)', '')
        """
        return f" ({percent(self.lower)} to {percent(self.upper)})" if math.isfinite(self.lower) else ""

    def in_words(self, error_rate: float) -> str:
        """What stands beside an error rate wherever one is shown.

        Parameters
        ----------
        error_rate
            Error rate of the links themselves.

        Examples
        --------
        >>> from attnscope.translation.alignment import Baselines
        >>> Baselines(0.503, 0.881, 0.845, heads=8, above=0.2, below=0.4).in_words(0.827)
        'the diagonal alone is better, 50.3%; random words 88.1%, the best of 8 such heads below 84.5% in 1 of 100'
        >>> Baselines(0.503, 0.881, 0.845, above=-0.1, below=0.2).in_words(0.55)
        'the diagonal alone 50.3%, not told from it; random words 88.1%, below 84.5% in 1 of 100'
        """
        diagonal = f"the diagonal alone {percent(self.diagonal)}"
        if math.isnan(self.above):
            diagonal += ", too few sentence pairs to tell which is lower" if math.isfinite(error_rate) else ""
        elif self.above > 0:
            diagonal = f"the diagonal alone is better, {percent(self.diagonal)}"
        elif self.below >= 0:
            diagonal += ", not told from it"
        best = f"the best of {self.heads} such heads " if self.heads > 1 else ""
        return (
            f"{diagonal}; random words {percent(self.chance)}, "
            f"{best}below {percent(self.chance_level)} in 1 of 100"
        )


def baselines(
    aligned: Sequence[Links], gold: Gold, lengths: Sequence[tuple[int, int]], chosen_of: int = 1
) -> Baselines:
    """Error rates that need no model: of the diagonal, and of random links.

    Intervals are Student's, of the ratio of two sums over pairs, by the first order of its dependence on each pair.
    Near 0 and 1 the error rate's own is Wilson's (1927), of as many links as would spread as much, and of one a
    pair where none or all are wrong; a skewed one reaches as far as Hall's (1992): see docs/coverage.md.
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
    >>> found.diagonal, found.chance, found.lower  # one pair has no interval
    (1.0, 0.5, nan)
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
    (rate, part), (of_diagonal, part_of_diagonal) = _by_pair(aligned, gold), _by_pair(diagonal, gold)
    lower, upper = _interval_of_rate(rate, part) if chosen_of == 1 else (math.nan, math.nan)
    above, below = _interval(rate - of_diagonal, part - part_of_diagonal, _OUTSIDE / chosen_of)
    deviations = float(norm.ppf((1 - _BELOW) ** (1 / chosen_of)))
    return Baselines(
        of_diagonal,
        1 - mean / whole if whole else math.nan,
        1 - (mean + deviations * math.sqrt(variance)) / whole if whole else math.nan,
        chosen_of,
        lower,
        upper,
        above,
        below,
    )


def _by_pair(aligned: Sequence[Links], gold: Gold) -> tuple[float, Float[np.ndarray, " pair"]]:
    """AER, and by how much each pair moves it, to the first order."""
    counts = np.array(
        [
            (len(links & sure) + len(links & (sure | possible)), len(links) + len(sure))
            for links, sure, possible in zip(aligned, gold.sure, gold.possible, strict=True)
        ],
        dtype=np.float64,
    ).reshape(-1, 2)
    right, all_links = counts.sum(0)
    if not all_links:
        return math.nan, np.zeros(len(counts))
    share = right / all_links
    return float(1 - share), (share * counts[:, 1] - counts[:, 0]) / all_links


def _interval(estimate: float, parts: Float[np.ndarray, " pair"], outside: float) -> tuple[float, float]:
    count = len(parts)
    if count < LEAST or math.isnan(estimate):
        return math.nan, math.nan
    error = math.sqrt(count / (count - 1) * np.square(parts).sum())
    reach = float(student.ppf(1 - outside / 2, count - 1)) * error
    return estimate - reach, estimate + reach


def _interval_of_rate(rate: float, parts: Float[np.ndarray, " pair"]) -> tuple[float, float]:
    """Student's where it lies between 0 and 1 and is not skewed; else Wilson's, and Hall's end of a long tail."""
    lower, upper = _interval(rate, parts, _OUTSIDE)
    count, square = len(parts), float(np.square(parts).sum())
    if math.isnan(lower):
        return lower, upper
    variance = count / (count - 1) * square
    third = count**2 / ((count - 1) * (count - 2)) * float((parts**3).sum())
    skewness = third / variance**1.5 if variance else 0.0
    if lower > 0 and upper < 1 and abs(skewness) <= _SKEWED:
        return lower, upper
    quantile = float(student.ppf(1 - _OUTSIDE / 2, count - 1))
    share = quantile**2 * variance / (rate * (1 - rate)) if variance else quantile**2 / count
    middle, half = (
        (rate + share / 2) / (1 + share),
        math.sqrt(share * rate * (1 - rate) + share**2 / 4) / (1 + share),
    )
    low, high = (
        rate - math.sqrt(variance) * float(without_skewness(sign * quantile, np.array(skewness)))
        for sign in (1, -1)
    )
    lower = min(middle - half, low) if skewness < -_VERY_SKEWED else middle - half
    upper = max(middle + half, high) if skewness > _VERY_SKEWED else middle + half
    return max(lower, 0.0), min(upper, 1.0)


def _drawn(links: int, words: int, sure: int, possible: int) -> tuple[float, float]:
    """Mean and variance of a sum of 2 for each sure and 1 for each other possible word, over distinct random words."""
    mean = (sure + possible) / words
    spread = (3 * sure + possible) / words - mean**2  # 4 sure + (possible - sure)
    finite = (words - links) / (words - 1) if words > 1 else 0.0
    return links * mean, links * spread * finite
