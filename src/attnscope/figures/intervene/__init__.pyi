from ._all import intervention_figures, intervention_readings
from ._effects import effect_intervals, effect_maps, weight_against_effect
from ._forbidden import forbidden_maps
from ._orders import estimate_panels, removal_curves

__all__ = [
    "effect_intervals",
    "effect_maps",
    "estimate_panels",
    "forbidden_maps",
    "intervention_figures",
    "intervention_readings",
    "removal_curves",
    "weight_against_effect",
]
