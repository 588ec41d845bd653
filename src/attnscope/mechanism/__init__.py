"""Why a head looks where it looks: what its weights, its inputs and the position table say of it.

Each analysis takes arrays, or a model and texts; `attnscope.explain` runs all of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
