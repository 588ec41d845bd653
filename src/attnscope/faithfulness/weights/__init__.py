"""Weights put to the test: other weights in the place of one head's own, and what the model then predicts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
