from ._all import write_scan_figures
from ._blocks import block_shares
from ._forms import form_comparison
from ._groups import group_maps
from ._maps import weight_maps
from ._offsets import offset_shares
from ._overview import overview
from ._patches import patch_profiles
from ._pies import label_pies
from ._profiles import profile_curves
from ._sample import Map, maps

__all__ = [
    "Map",
    "block_shares",
    "form_comparison",
    "group_maps",
    "label_pies",
    "maps",
    "offset_shares",
    "overview",
    "patch_profiles",
    "profile_curves",
    "weight_maps",
    "write_scan_figures",
]
