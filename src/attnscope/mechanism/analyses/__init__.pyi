from ._bias_effect import bias_effect
from ._controls import shift_controls
from ._cross_correlation import cross_correlation
from ._cross_spectrum import cross_spectrum
from ._interventions import interventions
from ._phase_map import phase_map
from ._position_cca import position_cca
from ._position_content import position_content
from ._position_pca import position_pca
from ._position_spectrum import position_spectrum
from ._repeated_tokens import repeated_tokens
from ._rotation_effect import rotation_effect
from ._scheme_kernel import scheme_kernel
from ._spectra import spectra_by_layer
from ._wave_removal import wave_removal
from ._waves import query_key_waves

__all__ = [
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
