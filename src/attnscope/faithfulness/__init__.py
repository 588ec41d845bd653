"""Whether it matters where a head looks: weights put to the test, and what they miss.

On arrays: `attnscope.faithfulness.arrays`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
