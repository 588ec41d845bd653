"""Whether a head matters: what a model's predictions lose without it, and whether its weights say so."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
