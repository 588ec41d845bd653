"""Figures for papers: one head of your choice, and an alignment as it is learned."""

from attnscope.results.figures.alignment import alignment_in_training
from attnscope.results.figures.attention import attention

__all__ = ["alignment_in_training", "attention"]
