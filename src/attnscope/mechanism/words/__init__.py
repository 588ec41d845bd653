"""What an explanation says, in sentences: one source of words for the terminal, the page and a run's description."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
