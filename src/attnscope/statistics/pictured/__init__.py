"""Where every head of a model of vision and language looks: texts with images in them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
