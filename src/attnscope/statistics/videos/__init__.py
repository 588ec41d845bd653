"""Where every head of a video encoder looks: weights between frames, and over the patches of each."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
