"""The attention lineage: training, translation, alignment, scores; one head step by step; tests of weights."""

from attnscope import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
