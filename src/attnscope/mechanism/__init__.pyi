from ._api import (
    cross_correlation,
    cross_spectrum,
    evidence_of,
    phase_map,
    position_cca,
    position_content,
    position_pca,
    position_spectrum,
    projections,
    query_key_waves,
)
from ._explain import Analyses, Kept, Step, explain
from ._ranking import best_heads, foretold, layer_numbers, mask_note, rank_heads, skipped_by_reason, summary
from ._stored import load_explanation
from ._verdict import ERROR, SAME
from .passes import bias_effect, interventions, rotation_effect, scheme_kernel

__all__ = [
    "ERROR",
    "SAME",
    "Analyses",
    "Kept",
    "Step",
    "best_heads",
    "bias_effect",
    "cross_correlation",
    "cross_spectrum",
    "evidence_of",
    "explain",
    "foretold",
    "interventions",
    "layer_numbers",
    "load_explanation",
    "mask_note",
    "phase_map",
    "position_cca",
    "position_content",
    "position_pca",
    "position_spectrum",
    "projections",
    "query_key_waves",
    "rank_heads",
    "rotation_effect",
    "scheme_kernel",
    "skipped_by_reason",
    "summary",
]
