from ._all import READINGS, patch_figures
from ._estimates import estimate_points
from ._maps import recovered_intervals, recovered_map

__all__ = ["READINGS", "estimate_points", "patch_figures", "recovered_intervals", "recovered_map"]
