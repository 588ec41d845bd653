"""One run by many processes: which units of work each does, and how their parts come together."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
