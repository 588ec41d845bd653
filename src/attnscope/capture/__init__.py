"""Any Hugging Face model: its attention calls, seen as they happen and checked against the model's own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
