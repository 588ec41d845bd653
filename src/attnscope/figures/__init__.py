"""Figures of a stored result, one function per figure, as matplotlib `Figure` objects.

`label_pies`, `overview`, `profile_curves` and `weight_maps` lay out what a result holds and compute nothing
else; so do `form_comparison` for efficient forms and `alignment_map`, `alignment_maps` and `error_rate_grid` for
word alignments, and `score_intervals`, `score_by_length`, `learning_curve_figure` and `alignments_side_by_side` for
translation systems. `save_figure` writes a figure as SVG, PDF and PNG, and
`restyled` changes how all of them look.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
