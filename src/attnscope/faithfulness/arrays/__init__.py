"""What a head's weights are worth, on arrays: NumPy and SciPy alone, one head or one layer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
