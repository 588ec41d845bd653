from ._alignment import alignment_map, alignment_maps, error_rate_grid
from ._comparison import (
    alignments_side_by_side,
    comparison_figures,
    learning_curve_figure,
    score_by_length,
    score_intervals,
    write_comparison_figures,
)

__all__ = [
    "alignment_map",
    "alignment_maps",
    "alignments_side_by_side",
    "comparison_figures",
    "error_rate_grid",
    "learning_curve_figure",
    "score_by_length",
    "score_intervals",
    "write_comparison_figures",
]
