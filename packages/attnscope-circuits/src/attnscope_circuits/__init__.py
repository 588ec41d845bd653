"""Circuits: read off the weights, logits split by component, and edges that carry an answer."""

from attnscope import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
