"""Figures of an explanation, one function per figure, as matplotlib `Figure` objects.

`write_explain_figures` writes all that an explanation has results for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
