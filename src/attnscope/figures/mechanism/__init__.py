"""Figures of an explanation, one function per figure, as matplotlib `Figure` objects.

`write_explain_figures` writes all that an explanation has results for.
"""

from attnscope.figures.mechanism.changes import interventions, scheme_effect
from attnscope.figures.mechanism.content import position_content
from attnscope.figures.mechanism.controls import shift_controls
from attnscope.figures.mechanism.explain import explain_figures, write_explain_figures
from attnscope.figures.mechanism.kernel import scheme_kernel
from attnscope.figures.mechanism.positions import (
    position_components,
    position_correlations,
    position_spectrum,
)
from attnscope.figures.mechanism.relearned import relearned_maps, relearned_profiles, relearned_table
from attnscope.figures.mechanism.shifts import cross_correlations, cross_spectrum_offsets, phase_maps
from attnscope.figures.mechanism.verdict import offset_agreement, peak_agreement, verdict_grid
from attnscope.figures.mechanism.waves import spectra_by_layer, wave_columns, wave_counts, wave_curves

__all__ = [
    "cross_correlations",
    "cross_spectrum_offsets",
    "explain_figures",
    "interventions",
    "offset_agreement",
    "peak_agreement",
    "phase_maps",
    "position_components",
    "position_content",
    "position_correlations",
    "position_spectrum",
    "relearned_maps",
    "relearned_profiles",
    "relearned_table",
    "scheme_effect",
    "scheme_kernel",
    "shift_controls",
    "spectra_by_layer",
    "verdict_grid",
    "wave_columns",
    "wave_counts",
    "wave_curves",
    "write_explain_figures",
]
