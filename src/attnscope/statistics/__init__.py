"""Where every head looks: statistics per text and head, kinds of heads, independence of the text."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
