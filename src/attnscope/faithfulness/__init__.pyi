from . import arrays, passes
from ._beside import where_heads_look, why_heads_look
from ._effects import ESTIMATES, effects
from ._inquiry import Inquiry, inquiry
from ._intervene import DEFAULT_TEXTS, intervene
from ._sets import changes_by_sets, removal_curves, search_heads
from ._stored import load_intervention, skipped_of
from ._summary import agreement_of, heads_of

__all__ = [
    "DEFAULT_TEXTS",
    "ESTIMATES",
    "Inquiry",
    "agreement_of",
    "arrays",
    "changes_by_sets",
    "effects",
    "heads_of",
    "inquiry",
    "intervene",
    "load_intervention",
    "passes",
    "removal_curves",
    "search_heads",
    "skipped_of",
    "where_heads_look",
    "why_heads_look",
]
