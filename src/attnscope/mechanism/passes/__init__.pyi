from ._content import position_content
from ._interventions import interventions
from ._kernel import scheme_kernel
from ._profiles import profiles_of, stacked_profiles
from ._scheme_effects import bias_effect, rotation_effect

__all__ = [
    "bias_effect",
    "interventions",
    "position_content",
    "profiles_of",
    "rotation_effect",
    "scheme_kernel",
    "stacked_profiles",
]
