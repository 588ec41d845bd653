"""What differs between two models that read the same corpus: every statistic of every head."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
