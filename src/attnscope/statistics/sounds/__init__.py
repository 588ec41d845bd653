"""Where every head of a model of sounds looks: weights over frames, with their times."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
