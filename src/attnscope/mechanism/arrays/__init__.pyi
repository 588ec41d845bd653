from ._checks import Labelled, in_band, labelled
from ._components import StateMoments, canonical_correlations, principal_components
from ._controls import shift_controls
from ._correlation import Mode, cross_correlation, profile_agreement
from ._cross_spectrum import cross_spectrum
from ._decomposition import append_one, reparametrize
from ._peaks import Offsets
from ._phase_map import completion_range, phase_map
from ._rotation import COMPLETIONS, Completion
from ._shares import covariance, covariance_share, jackknife, without_own
from ._spectrum import amplitude_spectrum
from ._waves import maximum_spectrum, query_key_waves

__all__ = [
    "COMPLETIONS",
    "Completion",
    "Labelled",
    "Mode",
    "Offsets",
    "StateMoments",
    "amplitude_spectrum",
    "append_one",
    "canonical_correlations",
    "completion_range",
    "covariance",
    "covariance_share",
    "cross_correlation",
    "cross_spectrum",
    "in_band",
    "jackknife",
    "labelled",
    "maximum_spectrum",
    "phase_map",
    "principal_components",
    "profile_agreement",
    "query_key_waves",
    "reparametrize",
    "shift_controls",
    "without_own",
]
