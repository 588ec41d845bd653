"""What commands left in folders: which runs there are, what each holds, and its arrays for other tools."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
