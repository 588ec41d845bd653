"""Word alignments as sets of links: from weights, from files, and how wrong they are."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.stats import norm
from scipy.stats import t as student

from attnscope.lineage.parallel_text import check_parallel, read_lines
from attnscope.measure.documents import LEAST, without_skewness
from attnscope.read.files import shown
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import percent

Links: TypeAlias = frozenset[tuple[int, int]]  # (source word, target word), counted from 0

Rule = Literal["argmax", "intersection", "threshold"]  # the last makes links of all weights from a least one on
LEAST_WEIGHT = 0.2
_LONGEST_LINK = 40  # characters
_LINK = re.compile("([0-9]+)([-p?])([0-9]+)")


@dataclass(frozen=True)
class Gold:
    """Alignments made by people, for each sentence pair."""

    sure: list[Links]  # links that must be there
    possible: list[Links]  # links that may be there; the sure ones are always among them


@dataclass(frozen=True)
class AlignmentScore:
    """How well links agree with people's."""

    error_rate: float  # AER, between 0 and 1; NaN where there are neither links nor sure links
    precision: float  # share of the links that are possible; NaN without links
    recall: float  # share of the sure links that were found; NaN without sure links
    links: int  # how many links were made


def links(weights: Float[np.ndarray, "target source"], rule: Rule = "argmax", threshold: float = LEAST_WEIGHT) -> Links:
    """Read links off the weights of one sentence pair."""
    if not threshold > 0:
        raise AttnscopeError(f"threshold must be above 0, found {threshold}")
    chosen = weights >= threshold if rule == "threshold" else weights > 0
    if rule != "threshold" and weights.size:
        chosen &= np.arange(weights.shape[1]) == weights.argmax(1)[:, None]
        if rule == "intersection":
            chosen &= np.arange(weights.shape[0])[:, None] == weights.argmax(0)
    return frozenset((int(source), int(target)) for target, source in np.argwhere(chosen))


def score_alignments(aligned: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links]) -> AlignmentScore:
    """Compare links with people's over a corpus: AER, precision and recall."""
    check_parallel({"the alignment": aligned, "the sure links": sure, "the possible links": possible})
    made, wanted = sum(map(len, aligned)), sum(map(len, sure))
    hits = sum(len(a & s) for a, s in zip(aligned, sure, strict=True))
    right = sum(len(a & (p | s)) for a, s, p in zip(aligned, sure, possible, strict=True))
    error_rate = 1 - _ratio(hits + right, made + wanted)
    return AlignmentScore(error_rate, precision=_ratio(right, made), recall=_ratio(hits, wanted), links=made)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def read_links(path: Path | str, first: int = 0) -> list[Links]:
    """Read a file of alignments in Pharaoh's format: a line ``0-0 1-2`` for each sentence pair, source first."""
    return read_gold(path, first).possible


def read_gold(path: Path | str, first: int = 1) -> Gold:
    """Read a file of people's alignments: ``1-2`` is a sure link and ``1p2`` (or ``1?2``) a possible one."""
    gold = Gold([], [])
    for number, line in enumerate(read_lines(path), start=1):
        kind_of: dict[tuple[int, int], set[str]] = {}
        for part in line.split():
            match = _LINK.fullmatch(part) if len(part) <= _LONGEST_LINK else None
            if match is None or min(int(match[1]), int(match[3])) < first:
                raise AttnscopeError(
                    f"{shown(path)}, line {number}: {shortly(part)} is not a link; expected such as "
                    f"{first}-{first + 1}, or {first}p{first + 1} for a possible one, words counted from {first} "
                    "(--gold-first)"
                )
            kind_of.setdefault((int(match[1]) - first, int(match[3]) - first), set()).add(match[2])
        gold.sure.append(frozenset(link for link, kinds in kind_of.items() if "-" in kinds))
        gold.possible.append(frozenset(kind_of))
    return gold


def within(links: Links, sources: int, targets: int) -> Links:
    """The links that lie inside a pair of sentences with so many words."""
    return frozenset((source, target) for source, target in links if source < sources and target < targets)


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Write links as Pharaoh did: ``source-target``, words counted from 0, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def links_of_line(line: str) -> Links:
    """The links of a line that `pharaoh` wrote."""
    pairs = (link.split("-") for link in line.split())
    return frozenset((int(source), int(target)) for source, target in pairs)


_BELOW = 0.01  # of the level that random links stay above
_OUTSIDE = 0.05  # of an interval
_SKEWED, _VERY_SKEWED = 0.1, 0.5  # skewness of an error rate


@dataclass(frozen=True)
class Baselines:
    """Error rates to hold an alignment's against."""

    # AER if each target word were linked to the source word at the same place of its sentence
    diagonal: float
    # mean AER of the same number of links for each target word, to source words drawn at random
    chance: float
    # the AER that such random links go below in 1 of 100, by the normal distribution; where the best of several heads
    # was chosen, the best of as many random ones
    chance_level: float
    heads: int = 1  # number of heads of which the best was chosen; 1 where none was
    # 95% interval of the alignment's own AER, of sentence pairs like these; NaN where the best of several heads was
    # chosen on these very pairs, which none holds for
    lower: float = math.nan
    upper: float = math.nan
    # the least and the most by which its AER lies above the diagonal's, in the same way; where the best of several
    # heads was chosen, an interval for all of them together
    above: float = math.nan
    below: float = math.nan

    def interval(self) -> str:
        """The interval in words, nothing where there is none."""
        return f" ({percent(self.lower)} to {percent(self.upper)})" if math.isfinite(self.lower) else ""

    def in_words(self, error_rate: float) -> str:
        """What stands beside an error rate wherever one is shown."""
        diagonal = f"the diagonal alone {percent(self.diagonal)}"
        if math.isnan(self.above):
            diagonal += ", too few sentence pairs to tell which is lower" if math.isfinite(error_rate) else ""
        elif self.above > 0:
            diagonal = f"the diagonal alone is better, {percent(self.diagonal)}"
        elif self.below >= 0:
            diagonal += ", not told from it"
        best = f"the best of {self.heads} such heads " if self.heads > 1 else ""
        return f"{diagonal}; random words {percent(self.chance)}, {best}below {percent(self.chance_level)} in 1 of 100"


def baselines(
    aligned: Sequence[Links], gold: Gold, lengths: Sequence[tuple[int, int]], chosen_of: int = 1
) -> Baselines:
    """Error rates that need no model: of the diagonal, and of random links."""
    diagonal = [
        frozenset(((2 * target + 1) * sources // (2 * targets), target) for target in range(targets) if sources)
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
    best = mean + float(norm.ppf((1 - _BELOW) ** (1 / chosen_of))) * math.sqrt(variance)
    chance, level = ((1 - right / whole) if whole else math.nan for right in (mean, best))
    return Baselines(of_diagonal, chance, level, chosen_of, lower, upper, above, below)


def _by_pair(aligned: Sequence[Links], gold: Gold) -> tuple[float, Float[np.ndarray, " pair"]]:
    """AER, and by how much each pair moves it, to the first order."""
    pairs = zip(aligned, gold.sure, gold.possible, strict=True)
    counts = [(len(made & sure) + len(made & (sure | maybe)), len(made) + len(sure)) for made, sure, maybe in pairs]
    counts = np.array(counts, dtype=np.float64).reshape(-1, 2)
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
    middle, half = ((rate + share / 2) / (1 + share), math.sqrt(share * rate * (1 - rate) + share**2 / 4) / (1 + share))
    low, high = (
        rate - math.sqrt(variance) * float(without_skewness(sign * quantile, np.array(skewness))) for sign in (1, -1)
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
