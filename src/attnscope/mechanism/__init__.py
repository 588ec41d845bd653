"""Why a head looks where it looks: what its weights, its inputs and the position table say of it.

Each analysis is a function of a model and texts (here) and of bare arrays (`attnscope.mechanism.arrays`);
`attnscope.explain` runs all of them. `study` reads a model's texts once for several analyses.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
