"""Small transformers whose circuits are known, because they were planted in the weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
