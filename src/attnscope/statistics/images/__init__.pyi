from ._grid import NOTHING, Grid, first_states, grid_of, pattern
from ._kinds import NEEDED, kinds_of_images, summarize_images
from ._measurement import ImageMeasurement
from ._offsets import offset_name
from ._patches import equal_call, measure_patches
from ._picture import jpeg, jpeg_of
from ._ranking import patch_peaks, patch_shares, rank_patch_heads
from ._scan import scan_images

__all__ = [
    "NEEDED",
    "NOTHING",
    "Grid",
    "ImageMeasurement",
    "equal_call",
    "first_states",
    "grid_of",
    "jpeg",
    "jpeg_of",
    "kinds_of_images",
    "measure_patches",
    "offset_name",
    "patch_peaks",
    "patch_shares",
    "pattern",
    "rank_patch_heads",
    "scan_images",
    "summarize_images",
]
