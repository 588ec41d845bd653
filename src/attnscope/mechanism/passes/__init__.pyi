from ._cause import band_removed, gain_without_band, responsible_band, score_of_band
from ._changes import CHANGES
from ._content import position_content
from ._interventions import interventions
from ._kernel import scheme_kernel
from ._profiles import profiles_of, stacked_profiles
from ._scheme_effects import bias_effect, rotation_effect

__all__ = [
    "CHANGES",
    "band_removed",
    "bias_effect",
    "gain_without_band",
    "interventions",
    "position_content",
    "profiles_of",
    "responsible_band",
    "rotation_effect",
    "scheme_kernel",
    "score_of_band",
    "stacked_profiles",
]
