from ._intervals import Interval, by_document, units_of
from ._search import random_sets, sparse_effects

__all__ = ["Interval", "by_document", "random_sets", "sparse_effects", "units_of"]
