from ._bias_effect import BIAS_EFFECT, bias_effect
from ._controls import CONTROLS, shift_controls
from ._cross_correlation import CROSS_CORRELATION, cross_correlation
from ._cross_spectrum import CROSS_SPECTRUM, cross_spectrum
from ._forms import FORMS
from ._interventions import INTERVENTIONS, interventions
from ._phase_map import PHASE_MAP, phase_map
from ._position_cca import POSITION_CCA, position_cca
from ._position_content import POSITION_CONTENT, position_content
from ._position_pca import POSITION_PCA, position_pca
from ._position_spectrum import POSITION_SPECTRUM, position_spectrum
from ._repeated_tokens import REPEATED_TOKENS, repeated_tokens
from ._rotation_effect import ROTATION_EFFECT, rotation_effect
from ._scheme_kernel import SCHEME_KERNEL, scheme_kernel
from ._spectra import SPECTRA, spectra_by_layer
from ._verdict import VERDICT
from ._wave_removal import WAVE_REMOVAL, wave_removal
from ._waves import WAVES, query_key_waves

__all__ = [
    "BIAS_EFFECT",
    "CONTROLS",
    "CROSS_CORRELATION",
    "CROSS_SPECTRUM",
    "FORMS",
    "INTERVENTIONS",
    "PHASE_MAP",
    "POSITION_CCA",
    "POSITION_CONTENT",
    "POSITION_PCA",
    "POSITION_SPECTRUM",
    "REPEATED_TOKENS",
    "ROTATION_EFFECT",
    "SCHEME_KERNEL",
    "SPECTRA",
    "VERDICT",
    "WAVES",
    "WAVE_REMOVAL",
    "bias_effect",
    "cross_correlation",
    "cross_spectrum",
    "interventions",
    "phase_map",
    "position_cca",
    "position_content",
    "position_pca",
    "position_spectrum",
    "query_key_waves",
    "repeated_tokens",
    "rotation_effect",
    "scheme_kernel",
    "shift_controls",
    "spectra_by_layer",
    "wave_removal",
]
