from ._all import READINGS, intervention_figures
from ._effects import effect_intervals, effect_maps, weight_against_effect
from ._forbidden import forbidden_maps
from ._orders import estimate_panels, removal_curves

__all__ = [
    "READINGS",
    "effect_intervals",
    "effect_maps",
    "estimate_panels",
    "forbidden_maps",
    "intervention_figures",
    "removal_curves",
    "weight_against_effect",
]
