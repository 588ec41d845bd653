"""The published numbers, one record each: what was published, where, how a model's own is found, and its chance.

Sources: ``S`` is Yamamoto and Matsuzaki (NLP 2023), ``E`` their paper of EMNLP 2023, ``K21`` Kobayashi et al. (EMNLP
2021), table 2. All but rows 20 and 21 are about roberta-base. Papers count layers and heads from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnscope.reproduction.yamamoto2023._finding import Finding
from attnscope.reproduction.yamamoto2023._models import GPT2, ROBERTA
from attnscope.reproduction.yamamoto2023._of_heads import (
    canonical,
    canonical_data,
    clustered,
    columns,
    few_labels,
    lobes,
    offset_of_scores,
    offset_of_weights,
    other_side,
    periodic_columns,
    position_lost,
    relearned,
    score_clusters,
    spectral_band,
)
from attnscope.reproduction.yamamoto2023._of_tables import (
    components,
    fast_energy,
    slow_waves,
    spectrum_peak,
    subspace,
    words,
)
from attnscope.reproduction.yamamoto2023._subject import SHARP, Subject


@dataclass(frozen=True)
class Row:
    """A published number.

    Attributes
    ----------
    number
        From 1.
    quantity, published, source
        What was published, and where.
    find
        What a model has in its place.
    tolerance
        What we take for agreement; the papers name none.
    by_chance
        How many untrained models of the published shape meet it (``benchmarks/paper_chance.py --models 12 --texts 3``).
    model
        Which published model it is about.
    impossible
        Why it cannot be had here.

    Examples
    --------
    >>> from attnscope.reproduction.yamamoto2023 import ROWS
    >>> row = ROWS[0]
    >>> row.number, row.quantity
    (1, 'variance of the position table in 4 dimensions')
    """

    number: int
    quantity: str
    published: str
    source: str
    find: Callable[[Subject], Finding]
    tolerance: str = ""
    by_chance: str = ""
    model: str = ROBERTA
    impossible: str = ""


def not_in_the_weights(_: Subject) -> Finding:
    """For what a checkpoint does not tell."""
    return Finding("not in the weights")


def not_run(_: Subject) -> Finding:
    """For what is not computed here: `impossible` says why."""
    return Finding("")


ROWS: tuple[Row, ...] = (
    Row(
        1,
        "variance of the position table in 4 dimensions",
        "50.51%",
        "S app. B, E 4.1.2",
        components(4, 50.51, 0.01),
        tolerance="0.01 points",
        by_chance="0 of 12",
    ),
    Row(
        2,
        "the same in 12 dimensions",
        "92.23%",
        "S, E",
        components(12, 92.23, 0.01),
        tolerance="0.01 points",
        by_chance="0 of 12",
    ),
    Row(3, "dimensions that positions take", "about 15", "E 4.1", subspace),
    Row(
        4,
        "peak of the table's spectrum",
        "near f=50",
        "S 3.3",
        spectrum_peak,
        tolerance="in 40..60, 3 x noise",
        by_chance="0 of 12",
    ),
    Row(
        5,
        "periods of the table's waves",
        "about 8 tokens or more",
        "E 4.3",
        fast_energy,
        tolerance="10% at shorter periods",
        by_chance="0 of 12",
    ),
    Row(
        6,
        "spectrum of words",
        "no peak",
        "S, E",
        words,
        tolerance="no column passes Fisher's g at 0.001",
        by_chance="12 of 12",
    ),
    Row(7, "profiles clustered", "14,400, k=6, 21 offsets", "S 3.1, E 3", clustered),
    Row(
        8,
        "heads with one or two labels over the texts",
        "all",
        "E 3 (S: most)",
        few_labels,
        tolerance="90% of heads",
        by_chance="0 of 12",
    ),
    Row(
        9,
        "head(8,9)",
        "t=-1, sharp",
        "S 3.1, 3.5; E",
        offset_of_weights(8, 9, -1, SHARP),
        tolerance="largest weight at -1, and 0.3 or more",
        by_chance="0 of 12",
    ),
    Row(
        10,
        "head(2,3)",
        "t=+1",
        "S 3.4",
        offset_of_weights(2, 3, 1),
        tolerance="largest weight at +1",
        by_chance="2 of 12",
    ),
    Row(
        11,
        "head(1,1)",
        "left; scores at t=-2",
        "S 3.4, 3.5",
        offset_of_scores,
        tolerance="scores at -3..-1",
        by_chance="2 of 12",
    ),
    Row(
        12,
        "head(7,5)",
        "right, softly (inferred)",
        "S 3.1",
        other_side,
        tolerance="D above 0.2, as of rightward heads",
        by_chance="0 of 12",
    ),
    Row(
        13,
        "head(1,1), columns 5 and 6",
        "t=-2, -3",
        "E 4.3",
        columns,
        tolerance="both at -2 or -3",
        by_chance="0 of 12",
    ),
    Row(14, "head(1,1), lobes that cancel", "near t=±30", "S 3.5", lobes),
    Row(
        15,
        "periodic columns of a positional head",
        "4 to 12",
        "S 3.3, app. B",
        periodic_columns,
        tolerance="median in 4..12",
        by_chance="0 of 12: no directed head",
    ),
    Row(
        16,
        "spectra of Q and K near f=50",
        "a peak, none in X, less in deeper layers",
        "S 3.3, E 4.2.2",
        spectral_band,
        tolerance="Q, K over noise and X in layer 1; last layer lower",
        by_chance="1 of 12",
    ),
    Row(17, "where position is lost", "layers 3 and 4 (cited)", "E 4.2.2", position_lost),
    Row(
        18,
        "components that X shares with positions",
        "5 to 20, fewer in deeper layers",
        "E 4.1.2",
        canonical,
        tolerance="5..20 correlations over 0.5",
        by_chance="0 of 12",
    ),
    Row(19, "tokens behind row 18", "200 x 512", "E", canonical_data),
    Row(
        20,
        "GPT-2: waves of its table",
        "f<10, periods over 51.2",
        "E app. C",
        slow_waves,
        tolerance="90% of the energy",
        by_chance="0 of 12",
        model=GPT2,
    ),
    Row(21, "GPT-2: profiles of scores clustered", "k=2, t=-30..30", "E app. C", score_clusters, model=GPT2),
    Row(22, "positions learned anew", "8,645 samples, 3 unknown tokens", "E app. E", relearned),
    Row(
        23,
        "words for a mask after that",
        "article, adventure, exercise, essay, experiment",
        "E table 1",
        not_run,
        impossible="needs roberta-base with positions learned anew, and the paper's sentence",
    ),
    Row(24, "BERT's training steps at 128 tokens", "90%", "S, E", not_in_the_weights),
    Row(
        25,
        "RoBERTa's mixing ratio: weights, norms, half residual, residual, LayerNorm",
        "95.8, 84.4, 47.9, 19.6, 16.2%",
        "K21",
        not_run,
        tolerance="2 points",
        impossible="norms of what is mixed: not a part of explain",
    ),
    Row(
        26,
        "BERT's mixing ratio",
        "97.1, 85.2, 48.6, 22.3, 18.8%",
        "K21",
        not_run,
        tolerance="2 points",
        impossible="norms of what is mixed: not a part of explain",
    ),
)
