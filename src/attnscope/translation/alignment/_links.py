"""Word alignments as sets of links: from weights, from files, and how wrong they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from attnscope.array_checks import shaped
from attnscope.checks import shortly
from attnscope.corpus import shown
from attnscope.errors import AttnscopeError
from attnscope.translation._lines import check_parallel, read_lines

Links: TypeAlias = frozenset[tuple[int, int]]  # (source word, target word), counted from 0

THRESHOLD = "threshold"  # the rule that makes links of all weights from a least one on
LEAST_WEIGHT = 0.2
_LONGEST_LINK = 40  # characters
_LINK = re.compile("([0-9]+)([-p?])([0-9]+)")


@dataclass(frozen=True)
class Gold:
    """Alignments made by people, for each sentence pair.

    Attributes
    ----------
    sure
        Links that must be there.
    possible
        Links that may be there; the sure ones are always among them.

    Examples
    --------
    >>> from attnscope.translation.alignment import Gold
    >>> gold = Gold(sure=[frozenset({(0, 0)})], possible=[frozenset({(0, 0), (1, 0)})])
    >>> [sorted(may - must) for must, may in zip(gold.sure, gold.possible)]
    [[(1, 0)]]
    """

    sure: list[Links]
    possible: list[Links]


@dataclass(frozen=True)
class AlignmentScore:
    """How well links agree with people's.

    Attributes
    ----------
    error_rate
        AER, between 0 and 1; NaN where there are neither links nor sure links.
    precision
        Share of the links that are possible; NaN without links.
    recall
        Share of the sure links that were found; NaN without sure links.
    links
        How many links were made.

    Examples
    --------
    >>> from attnscope.translation.alignment import Gold, score_alignments
    >>> gold = Gold(sure=[frozenset({(0, 0), (1, 1)})], possible=[frozenset({(0, 0), (1, 1), (2, 1)})])
    >>> score_alignments([frozenset({(0, 0), (2, 1)})], gold.sure, gold.possible)
    AlignmentScore(error_rate=0.25, precision=1.0, recall=0.5, links=2)
    """

    error_rate: float
    precision: float
    recall: float
    links: int


def links(
    weights: Float[np.ndarray, "target source"], rule: str = "argmax", threshold: float = LEAST_WEIGHT
) -> Links:
    """Read links off the weights of one sentence pair.

    Parameters
    ----------
    weights
        Weight of each source word for each target word. A row of zeros is a target word that looks at no word: it
        gets no link.
    rule
        ``argmax``: each target word to its heaviest source word (the first of equals). ``intersection``: of these
        links only those whose target word is also the heaviest of its source word. ``threshold``: all weights
        of at least `threshold`.
    threshold
        For the rule of that name.

    Returns
    -------
    frozenset of (int, int)
        Pairs (source word, target word), counted from 0. For links that two models, one for each direction, agree on,
        intersect their sets.

    Raises
    ------
    AttnscopeError
        If the weights are not two-dimensional or one is NaN or infinite, the rule is not known or the threshold is not
        positive.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.translation.alignment import links
    >>> weights = np.array([[0.9, 0.1], [0.6, 0.4]])
    >>> sorted(links(weights)), sorted(links(weights, "intersection")), sorted(links(weights, "threshold", 0.4))
    ([(0, 0), (0, 1)], [(0, 0)], [(0, 0), (0, 1), (1, 1)])
    """
    shaped("weights", weights, "target, source")
    weights = np.asarray(
        weights
    )  # as precise as they are: a threshold is compared with them as it always was
    if not threshold > 0:
        raise AttnscopeError(f"threshold must be above 0, found {threshold}")
    if rule == THRESHOLD:
        chosen = weights >= threshold
    elif rule in {"argmax", "intersection"}:
        chosen = weights > 0
        if weights.size:
            chosen &= np.arange(weights.shape[1]) == weights.argmax(1)[:, None]
            if rule == "intersection":
                chosen &= np.arange(weights.shape[0])[:, None] == weights.argmax(0)
    else:
        raise AttnscopeError(f"rule {rule!r} is not known: choose argmax, threshold or intersection")
    return frozenset((int(source), int(target)) for target, source in np.argwhere(chosen))


def score_alignments(
    aligned: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links]
) -> AlignmentScore:
    """Compare links with people's over a corpus: AER, precision and recall.

    With A the links, S the sure and P the possible ones (S is within P; what is sure counts as possible even where it
    is not listed): AER = 1 - (|A∩S| + |A∩P|) / (|A| + |S|), precision |A∩P| / |A|, recall |A∩S| / |S|. Sums run over
    the whole corpus.

    Parameters
    ----------
    aligned, sure, possible
        Set of links of each sentence pair.

    Raises
    ------
    AttnscopeError
        If their numbers of sentences differ.

    References
    ----------
    Och and Ney, "A systematic comparison of various statistical alignment models" (Computational Linguistics 2003).

    Examples
    --------
    >>> from attnscope.translation.alignment import score_alignments
    >>> a, s, p = {(0, 0), (1, 1), (2, 0)}, {(0, 0), (1, 2)}, {(1, 1)}
    >>> score_alignments([frozenset(a)], [frozenset(s)], [frozenset(p)])
    AlignmentScore(error_rate=0.4, precision=0.6666666666666666, recall=0.5, links=3)
    """
    check_parallel({"the alignment": aligned, "the sure links": sure, "the possible links": possible})
    made = wanted = hits = right = 0
    for a, s, p in zip(aligned, sure, possible, strict=True):
        made, wanted = made + len(a), wanted + len(s)
        hits, right = hits + len(a & s), right + len(a & (p | s))
    return AlignmentScore(
        error_rate=1 - _ratio(hits + right, made + wanted),
        precision=_ratio(right, made),
        recall=_ratio(hits, wanted),
        links=made,
    )


def alignment_error_rate(aligned: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links]) -> float:
    """AER alone, of `score_alignments`.

    Parameters
    ----------
    aligned
        Links of each sentence pair that were found.
    sure, possible
        Gold links of each sentence pair.

    Examples
    --------
    >>> from attnscope.translation.alignment import alignment_error_rate
    >>> gold = [frozenset({(0, 0), (1, 1)})]
    >>> alignment_error_rate(gold, gold, gold)
    0.0
    """
    return score_alignments(aligned, sure, possible).error_rate


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def read_links(path: Path | str, first: int = 0) -> list[Links]:
    r"""Read a file of alignments in Pharaoh's format: a line ``0-0 1-2`` for each sentence pair, source first.

    Parameters
    ----------
    path
        The file; ``-`` is standard input.
    first
        The number that the file gives to the first word, 0 or 1.

    Raises
    ------
    AttnscopeError
        If the file cannot be read, or a part of it is no link.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.translation.alignment import pharaoh, read_links
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "links"
    ...     _ = file.write_text("1-0 0-1\n")
    ...     [pharaoh(links) for links in read_links(file)]
    ['0-1 1-0']
    """
    return read_gold(path, first).possible


def read_gold(path: Path | str, first: int = 1) -> Gold:
    r"""Read a file of people's alignments: ``1-2`` is a sure link and ``1p2`` (or ``1?2``) a possible one.

    A link may point past the end of its sentence: a few do in public files. It is kept, for published error rates
    count it: it can never be found and so costs recall. `within` takes such links away.

    Parameters
    ----------
    path
        The file, a line for each sentence pair; ``-`` is standard input.
    first
        The number that the file gives to the first word: 1 in most gold files, 0 in some.

    Raises
    ------
    AttnscopeError
        If the file cannot be read, or a part of it is no link.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.translation.alignment import read_gold
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "gold"
    ...     _ = file.write_text("1-1 2p1\n")
    ...     gold = read_gold(file)
    >>> sorted(gold.sure[0]), sorted(gold.possible[0])
    ([(0, 0)], [(0, 0), (1, 0)])
    """
    sure: list[Links] = []
    possible: list[Links] = []
    for number, line in enumerate(read_lines(path), start=1):
        every: set[tuple[int, int]] = set()
        certain: set[tuple[int, int]] = set()
        for part in line.split():
            match = _LINK.fullmatch(part) if len(part) <= _LONGEST_LINK else None
            if match is None or min(int(match[1]), int(match[3])) < first:
                raise AttnscopeError(
                    f"{shown(path)}, line {number}: {shortly(part)} is not a link; expected such as "
                    f"{first}-{first + 1}, or {first}p{first + 1} for a possible one, words counted from {first} "
                    "(--gold-first)"
                )
            link = int(match[1]) - first, int(match[3]) - first
            every.add(link)
            if match[2] == "-":
                certain.add(link)
        sure.append(frozenset(certain))
        possible.append(frozenset(every))
    return Gold(sure, possible)


def within(links: Links, sources: int, targets: int) -> Links:
    """The links that lie inside a pair of sentences with so many words.

    Parameters
    ----------
    links
        Pairs (source word, target word), from 0.
    sources, targets
        Number of words on either side.

    Examples
    --------
    >>> from attnscope.translation.alignment import within
    >>> sorted(within(frozenset({(0, 0), (5, 0)}), sources=5, targets=1))
    [(0, 0)]
    """
    return frozenset((source, target) for source, target in links if source < sources and target < targets)


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Write links as Pharaoh did: ``source-target``, words counted from 0, in order.

    Examples
    --------
    >>> from attnscope.translation.alignment import pharaoh
    >>> pharaoh({(10, 0), (2, 1)})
    '2-1 10-0'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def links_of_line(line: str) -> Links:
    """The links of a line that `pharaoh` wrote.

    Examples
    --------
    >>> sorted(links_of_line("2-1 10-0"))
    [(2, 1), (10, 0)]
    """
    pairs = (link.split("-") for link in line.split())
    return frozenset((int(source), int(target)) for source, target in pairs)
