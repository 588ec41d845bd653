from . import arrays
from ._given import Given, given_texts
from ._intervals import with_intervals
from .contributions import KINDS, TOKEN_KINDS, contribution_profiles, token_contributions
from .weights import (
    adversarial_test,
    agreement_test,
    erasure_test,
    frozen_test,
    permutation_test,
    same_output_test,
    uniform_test,
)

__all__ = [
    "KINDS",
    "TOKEN_KINDS",
    "Given",
    "adversarial_test",
    "agreement_test",
    "arrays",
    "contribution_profiles",
    "erasure_test",
    "frozen_test",
    "given_texts",
    "permutation_test",
    "same_output_test",
    "token_contributions",
    "uniform_test",
    "with_intervals",
]
