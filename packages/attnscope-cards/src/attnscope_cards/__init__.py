"""What is known of every head, for other tools: cards, lists of heads, and a press for kvpress."""

from attnscope import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
