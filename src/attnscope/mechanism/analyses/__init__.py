"""The analyses, one file each: the function of a model and texts, and the record that everything else reads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
