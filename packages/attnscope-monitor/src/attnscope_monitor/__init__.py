"""Attention heads while a model trains: `HeadMonitor`, for transformers' Trainer or a loop of one's own."""

from attnscope_monitor.monitor import HeadMonitor

__all__ = ["HeadMonitor"]
