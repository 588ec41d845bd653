"""Work handed out to processes that may be lost: who does what, and Ray as one way to have such processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
