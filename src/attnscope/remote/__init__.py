"""Object stores and the web: addresses, reading that goes on where the line breaks, folders of objects, leases."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
