"""All analyses, in the order of the page. To add one: a file in `analyses`, and its line here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from attnscope.explanation.study import Analysis
from attnscope.support.arguments import reads, validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

GROUP = "attnscope.analyses"  # of entry points: how other packages and reproductions add theirs

_FILES = (  # of `analyses`, without the line before their names; each has its record, `ANALYSIS`
    "forms",
    "verdict",
    "position_spectrum",
    "position_pca",
    "position_cca",
    "waves",
    "spectra",
    "cross_spectrum",
    "phase_map",
    "cross_correlation",
    "controls",
    "position_content",
    "scheme_kernel",
    "rotation_effect",
    "bias_effect",
    "wave_removal",
    "interventions",
    "repeated_tokens",
)
ANALYSES: tuple[Analysis, ...] = tuple(
    import_module(f"attnscope.explanation.analyses.{file}").ANALYSIS for file in _FILES
)


@cache
def known_analyses() -> Mapping[str, Analysis]:
    """Every analysis by name: those of `explain`, and those that installed packages add under `GROUP`."""
    known = {analysis.name: analysis for analysis in ANALYSES}
    for entry in entry_points(group=GROUP):
        for analysis in entry.load():
            if analysis.name in known:
                raise AttnscopeError(
                    f"{entry.value} adds an analysis {analysis.name!r}, and there is one of that name: "
                    "expected another name; uninstall that package, or tell its authors"
                )
            known[analysis.name] = analysis
    return known


@reads("explain")
@validated
def analyses_of(tree: xr.DataTree) -> list[Analysis]:
    """The analyses that a tree holds and that are known here, in the order of the page."""
    return [analysis for name, analysis in known_analyses().items() if name in tree.children]
