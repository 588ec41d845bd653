from ._all import patch_figures, patch_readings
from ._estimates import estimate_points
from ._maps import recovered_intervals, recovered_map

__all__ = ["estimate_points", "patch_figures", "patch_readings", "recovered_intervals", "recovered_map"]
