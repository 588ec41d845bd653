"""Figures of alignments and of translation systems side by side, one function per figure."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
