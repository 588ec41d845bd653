"""Where every head of a vision encoder looks: weights over rows and columns of patches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
