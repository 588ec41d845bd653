from ._align import MOST_WORDS, Aligned, ShownPair, align
from ._links import (
    AlignmentScore,
    Gold,
    alignment_error_rate,
    links,
    pharaoh,
    read_gold,
    read_links,
    score_alignments,
    within,
)
from ._word_weights import WordAlignment, forced_alignment, word_weights

__all__ = [
    "MOST_WORDS",
    "Aligned",
    "AlignmentScore",
    "Gold",
    "ShownPair",
    "WordAlignment",
    "align",
    "alignment_error_rate",
    "forced_alignment",
    "links",
    "pharaoh",
    "read_gold",
    "read_links",
    "score_alignments",
    "within",
    "word_weights",
]
