"""Attention heads inside vLLM: an extension of its workers that measures the rows of every request."""

from attnscope_vllm.worker import HeadWorker

__all__ = ["HeadWorker"]
