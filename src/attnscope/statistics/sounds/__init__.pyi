from ._scan import scan_sounds

__all__ = ["scan_sounds"]
