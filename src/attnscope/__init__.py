"""attnscope: where every attention head of a model looks and why, and the attention lineage to build and train."""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
