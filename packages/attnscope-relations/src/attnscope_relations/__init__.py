"""Which heads link what belongs together: words of a relation, residues in contact, words and their translations."""

from attnscope import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
