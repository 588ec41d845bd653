"""Figures for papers: one head of your choice, and one score against another."""

from attnscope.results.figures.against import against
from attnscope.results.figures.attention import attention

__all__ = ["against", "attention"]
