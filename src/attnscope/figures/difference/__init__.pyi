from ._changes import READINGS, before_after, change_maps, difference_figures

__all__ = ["READINGS", "before_after", "change_maps", "difference_figures"]
