"""Which source words a translation comes from: weights between words, links, and how wrong they are."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
