"""Offline HTML pages of a stored result: where all heads look (`scan`), why (`explain`), what aligns (`align`),
which system translates best (`compare`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
