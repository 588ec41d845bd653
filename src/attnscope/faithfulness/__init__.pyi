from . import arrays

__all__ = ["arrays"]
