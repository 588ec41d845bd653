"""Why a head looks where it looks: what its weights, its inputs and the position table say of it.

Each analysis takes arrays, or a model and texts; `attnscope.explain` runs all of them.
"""

from attnscope.mechanism._api import (
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
from attnscope.mechanism.explain import explain
from attnscope.mechanism.interventions import interventions
from attnscope.mechanism.kernel import scheme_kernel
from attnscope.mechanism.scheme_effects import bias_effect, rotation_effect

__all__ = [
    "bias_effect",
    "cross_correlation",
    "cross_spectrum",
    "evidence_of",
    "explain",
    "interventions",
    "phase_map",
    "position_cca",
    "position_content",
    "position_pca",
    "position_spectrum",
    "projections",
    "query_key_waves",
    "rotation_effect",
    "scheme_kernel",
]
