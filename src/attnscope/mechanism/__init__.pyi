from . import arrays, words
from ._analysis import Analysis, Picture, Requirement, Section, TextTable
from ._catalogue import ANALYSES, analyses_of, known_analyses
from ._explain import explain
from ._needs import BIAS, BILINEAR_SCORES, POSITION_TABLE, ROTATION, ROTATION_OR_BIAS
from ._not_defined import NotDefinedError
from ._over_heads import inputs_of
from ._projections import projections
from ._ranking import HeadExplanation, best_heads, rank_explanations
from ._stored import load_explanation
from ._study import DEFAULT_TEXTS, FEW_TEXTS, Study, studied, study
from ._verdict import ERROR, SAME
from .analyses import (
    bias_effect,
    cross_correlation,
    cross_spectrum,
    interventions,
    phase_map,
    position_cca,
    position_content,
    position_pca,
    position_spectrum,
    query_key_waves,
    repeated_tokens,
    rotation_effect,
    scheme_kernel,
    shift_controls,
    spectra_by_layer,
    wave_removal,
)

__all__ = [
    "ANALYSES",
    "BIAS",
    "BILINEAR_SCORES",
    "DEFAULT_TEXTS",
    "ERROR",
    "FEW_TEXTS",
    "POSITION_TABLE",
    "ROTATION",
    "ROTATION_OR_BIAS",
    "SAME",
    "Analysis",
    "HeadExplanation",
    "NotDefinedError",
    "Picture",
    "Requirement",
    "Section",
    "Study",
    "TextTable",
    "analyses_of",
    "arrays",
    "best_heads",
    "bias_effect",
    "cross_correlation",
    "cross_spectrum",
    "explain",
    "inputs_of",
    "interventions",
    "known_analyses",
    "load_explanation",
    "phase_map",
    "position_cca",
    "position_content",
    "position_pca",
    "position_spectrum",
    "projections",
    "query_key_waves",
    "rank_explanations",
    "repeated_tokens",
    "rotation_effect",
    "scheme_kernel",
    "shift_controls",
    "spectra_by_layer",
    "studied",
    "study",
    "wave_removal",
    "words",
]
