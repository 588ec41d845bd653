from ._score import score

__all__ = [
    "score",
]
