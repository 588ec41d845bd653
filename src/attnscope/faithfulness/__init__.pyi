from . import arrays, contributions, passes, weights
from ._attribution_patching import attribution_patch
from ._beside import trust_in_weights, where_heads_look, why_heads_look
from ._bleu import bleu_without_heads
from ._effect import Effect, said_effect
from ._effects import ESTIMATES, effects
from ._forbidden import without_forbidden
from ._given import Given, given_texts
from ._inquiry import Inquiry, inquiry
from ._intervals import with_intervals
from ._intervene import intervene
from ._knockout import Forbidden, knock_out
from ._patch import load_patching, patch
from ._patch_said import (
    PatchedPlace,
    estimator_names,
    patch_headline,
    patched_places,
    said_share,
    what_is_done,
)
from ._patched import patched_of
from ._patching import activation_patch
from ._path_patching import path_patch
from ._sets import changes_by_sets, removal_curves, search_heads
from ._shuffled import shuffled_weights
from ._stored import load_intervention
from ._summary import agreement_of, heads_of
from ._together import taken_together
from ._verdict import SHARP_SHARE, HeadVerdict, effect_of, headline, verdicts
from .contributions import KINDS, TOKEN_KINDS, contribution_profiles, token_contributions
from .passes import Pair, Pairs, read_pairs
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
    "ESTIMATES",
    "KINDS",
    "SHARP_SHARE",
    "TOKEN_KINDS",
    "Effect",
    "Forbidden",
    "Given",
    "HeadVerdict",
    "Inquiry",
    "Pair",
    "Pairs",
    "PatchedPlace",
    "activation_patch",
    "adversarial_test",
    "agreement_of",
    "agreement_test",
    "arrays",
    "attribution_patch",
    "bleu_without_heads",
    "changes_by_sets",
    "contribution_profiles",
    "contributions",
    "effect_of",
    "effects",
    "erasure_test",
    "estimator_names",
    "frozen_test",
    "given_texts",
    "headline",
    "heads_of",
    "inquiry",
    "intervene",
    "knock_out",
    "load_intervention",
    "load_patching",
    "passes",
    "patch",
    "patch_headline",
    "patched_of",
    "patched_places",
    "path_patch",
    "permutation_test",
    "read_pairs",
    "removal_curves",
    "said_effect",
    "said_share",
    "same_output_test",
    "search_heads",
    "shuffled_weights",
    "taken_together",
    "token_contributions",
    "trust_in_weights",
    "uniform_test",
    "verdicts",
    "weights",
    "what_is_done",
    "where_heads_look",
    "why_heads_look",
    "with_intervals",
    "without_forbidden",
]
