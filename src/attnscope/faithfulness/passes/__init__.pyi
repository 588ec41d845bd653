from ._attend import output_with_gradient
from ._gradients import HeadGradients, attribution, gates_towards, importance
from ._questions import IGNORED, Kind, Questions, kind_of_question, questions
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
    "HeadGradients",
    "HeadMeans",
    "Kind",
    "Outputs",
    "Questions",
    "StackedPasses",
    "attribution",
    "blocks_of",
    "donor_positions",
    "gates_towards",
    "importance",
    "kind_of_question",
    "output_with_gradient",
    "questions",
    "real_queries",
    "replacement",
    "replacing",
    "replacing_sets",
    "stacked_passes",
]
