"""Where every head looks while a model writes: statistics of each generated token."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
