from ._attend import output_with_gradient
from ._encoded_pairs import EncodedPairs, one_token, position_labels, token_count
from ._gradients import HeadGradients, answers_difference, attribution, gates_towards, importance
from ._pairs import Pair, Pairs, PairTexts, given_pairs, read_pairs
from ._questions import MASKED, Kind, Questions, kind_of_question, questions
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
from ._skipping import same_without_what_is_skipped
from ._stack import StackedPasses, blocks_of, stacked_passes

__all__ = [
    "ABLATIONS",
    "MASKED",
    "Ablation",
    "EncodedPairs",
    "HeadGradients",
    "HeadMeans",
    "Kind",
    "Outputs",
    "Pair",
    "PairTexts",
    "Pairs",
    "Questions",
    "StackedPasses",
    "answers_difference",
    "attribution",
    "blocks_of",
    "donor_positions",
    "gates_towards",
    "given_pairs",
    "importance",
    "kind_of_question",
    "one_token",
    "output_with_gradient",
    "position_labels",
    "questions",
    "read_pairs",
    "real_queries",
    "replacement",
    "replacing",
    "replacing_sets",
    "same_without_what_is_skipped",
    "stacked_passes",
    "token_count",
    "unread_sites",
]
