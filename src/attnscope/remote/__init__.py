"""Texts in object stores and on the web: addresses, and reading that resumes where the connection broke."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
