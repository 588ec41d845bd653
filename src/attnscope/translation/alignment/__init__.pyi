from ._align import align
from ._aligned import MOST_WORDS, Aligned, ShownPair
from ._baselines import Baselines, baselines
from ._forcing import forced_alignment
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
from ._stored import LINKS, RECORD, load_alignment, write_alignment
from ._word_weights import WordAlignment, word_weights

__all__ = [
    "LINKS",
    "MOST_WORDS",
    "RECORD",
    "Aligned",
    "AlignmentScore",
    "Baselines",
    "Gold",
    "ShownPair",
    "WordAlignment",
    "align",
    "alignment_error_rate",
    "baselines",
    "forced_alignment",
    "links",
    "load_alignment",
    "pharaoh",
    "read_gold",
    "read_links",
    "score_alignments",
    "within",
    "word_weights",
    "write_alignment",
]
