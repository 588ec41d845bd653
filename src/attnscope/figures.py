"""Figures for papers: one head of your choice."""

from attnscope.results.figures.attention import attention

__all__ = ["attention"]
