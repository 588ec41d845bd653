from ._changes import before_after, change_maps, difference_figures, difference_readings

__all__ = ["before_after", "change_maps", "difference_figures", "difference_readings"]
