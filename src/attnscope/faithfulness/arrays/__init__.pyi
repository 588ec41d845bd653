from ._adversarial import OBJECTIVES, Objective, adversarial_weights
from ._agreement import rank_agreement
from ._block import BlockParts, block_norms, block_parts
from ._changed import erased_weights, permuted_weights, uniform_weights
from ._distances import jensen_shannon, total_variation
from ._effective import column_basis, effective_attention, identifiability
from ._intervals import Interval, by_document
from ._norms import norm_weights
from ._paths import FLOW_TOKENS, attention_flow, gradient_attention, rollout
from ._search import random_sets, sparse_effects
from ._sign_flips import above_zero

__all__ = [
    "FLOW_TOKENS",
    "OBJECTIVES",
    "BlockParts",
    "Interval",
    "Objective",
    "above_zero",
    "adversarial_weights",
    "attention_flow",
    "block_norms",
    "block_parts",
    "by_document",
    "column_basis",
    "effective_attention",
    "erased_weights",
    "gradient_attention",
    "identifiability",
    "jensen_shannon",
    "norm_weights",
    "permuted_weights",
    "random_sets",
    "rank_agreement",
    "rollout",
    "sparse_effects",
    "total_variation",
    "uniform_weights",
]
