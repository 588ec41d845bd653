from ._all import components_of_models, explain_figures, tables_of_models, write_explain_figures
from ._changes import interventions, scheme_effect, wave_removal
from ._common import ALONE, MEASURED, NOISE, curve, legend_above
from ._content import position_content
from ._controls import shift_controls
from ._kernel import scheme_kernel
from ._positions import position_components, position_correlations, position_spectrum
from ._shifts import cross_correlations, cross_spectrum_offsets, phase_maps
from ._verdict import offset_agreement, peak_agreement, verdict_grid
from ._waves import spectra_by_layer, wave_columns, wave_counts, wave_curves

__all__ = [
    "ALONE",
    "MEASURED",
    "NOISE",
    "components_of_models",
    "cross_correlations",
    "cross_spectrum_offsets",
    "curve",
    "explain_figures",
    "interventions",
    "legend_above",
    "offset_agreement",
    "peak_agreement",
    "phase_maps",
    "position_components",
    "position_content",
    "position_correlations",
    "position_spectrum",
    "scheme_effect",
    "scheme_kernel",
    "shift_controls",
    "spectra_by_layer",
    "tables_of_models",
    "verdict_grid",
    "wave_columns",
    "wave_counts",
    "wave_curves",
    "wave_removal",
    "write_explain_figures",
]
