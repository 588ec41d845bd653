from ._attend import output_with_gradient
from ._gradients import HeadGradients, answers_difference, attribution, gates_towards, importance
from ._pairs import EncodedPairs, Pair, read_pairs
from ._questions import IGNORED, Kind, Questions, kind_of_question, questions
from ._reads import unread_sites
from ._replacements import (
    ABLATIONS,
    Ablation,
    HeadMeans,
    Outputs,
    donor_positions,
    real_queries,
    replacement,
    replacing,
    replacing_sets,
)
from ._stack import StackedPasses, blocks_of, stacked_passes

__all__ = [
    "ABLATIONS",
    "IGNORED",
    "Ablation",
    "EncodedPairs",
    "HeadGradients",
    "HeadMeans",
    "Kind",
    "Outputs",
    "Pair",
    "Questions",
    "StackedPasses",
    "answers_difference",
    "attribution",
    "blocks_of",
    "donor_positions",
    "gates_towards",
    "importance",
    "kind_of_question",
    "output_with_gradient",
    "questions",
    "read_pairs",
    "real_queries",
    "replacement",
    "replacing",
    "replacing_sets",
    "stacked_passes",
    "unread_sites",
]
