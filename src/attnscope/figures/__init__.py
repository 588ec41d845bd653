"""Figures of a stored result, one function per figure, as matplotlib `Figure` objects.

`label_pies`, `overview`, `profile_curves` and `weight_maps` lay out what a result holds and compute nothing
else; so do `form_comparison` for efficient forms and `alignment_map`, `alignment_maps` and `error_rate_grid` for
word alignments, and `score_intervals`, `score_by_length`, `learning_curve_figure` and `alignments_side_by_side` for
translation systems. `save_figure` writes a figure as SVG, PDF and PNG, and
`restyled` changes how all of them look.
"""

from attnscope.figures.alignment import alignment_map, alignment_maps, error_rate_grid
from attnscope.figures.comparison import (
    alignments_side_by_side,
    learning_curve_figure,
    score_by_length,
    score_intervals,
)
from attnscope.figures.forms import form_comparison
from attnscope.figures.maps import weight_maps
from attnscope.figures.overview import overview
from attnscope.figures.pies import label_pies
from attnscope.figures.profiles import profile_curves
from attnscope.figures.save import save_figure
from attnscope.figures.scan import write_scan_figures
from attnscope.figures.style import restyled

__all__ = [
    "alignment_map",
    "alignment_maps",
    "alignments_side_by_side",
    "error_rate_grid",
    "form_comparison",
    "label_pies",
    "learning_curve_figure",
    "overview",
    "profile_curves",
    "restyled",
    "save_figure",
    "score_by_length",
    "score_intervals",
    "weight_maps",
    "write_scan_figures",
]
