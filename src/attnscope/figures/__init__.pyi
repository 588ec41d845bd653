from .save import save_figure
from .scan import (
    block_shares,
    form_comparison,
    label_pies,
    offset_shares,
    overview,
    patch_profiles,
    profile_curves,
    weight_maps,
    write_scan_figures,
)
from .style import restyled
from .translation import (
    alignment_map,
    alignment_maps,
    alignments_side_by_side,
    error_rate_grid,
    learning_curve_figure,
    score_by_length,
    score_intervals,
)

__all__ = [
    "alignment_map",
    "alignment_maps",
    "alignments_side_by_side",
    "block_shares",
    "error_rate_grid",
    "form_comparison",
    "label_pies",
    "learning_curve_figure",
    "offset_shares",
    "overview",
    "patch_profiles",
    "profile_curves",
    "restyled",
    "save_figure",
    "score_by_length",
    "score_intervals",
    "weight_maps",
    "write_scan_figures",
]
