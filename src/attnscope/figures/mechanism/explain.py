"""The figures of an explanation, all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from shutil import copyfile
from typing import TYPE_CHECKING

import numpy as np

from attnscope.checks import FORMATS
from attnscope.figures.mechanism import (
    changes,
    content,
    controls,
    kernel,
    positions,
    relearned,
    shifts,
    verdict,
    waves,
)
from attnscope.figures.mechanism.paper import SAME, paper_figures
from attnscope.figures.reading import axis_values
from attnscope.figures.save import save_figure
from attnscope.mechanism.ranking import best_heads

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr
    from matplotlib.figure import Figure

    OfHeads = Callable[[xr.Dataset, Sequence[tuple[int, int]]], Figure]

#: Figures of a whole node, and of some heads of it: (node, name of the figure, function).
WHOLE: tuple[tuple[str, str, Callable[[xr.Dataset], Figure]], ...] = (
    ("verdict", "verdict", verdict.verdict_grid),
    ("verdict", "offset-agreement", verdict.offset_agreement),
    ("position_spectrum", "position-spectrum", positions.position_spectrum),
    ("position_pca", "position-components", positions.position_components),
    ("position_cca", "position-correlations", positions.position_correlations),
    ("waves", "wave-counts", waves.wave_counts),
    ("spectra", "spectra-by-layer", waves.spectra_by_layer),
    ("cross_correlation", "peak-agreement", verdict.peak_agreement),
    ("controls", "shift-controls", controls.shift_controls),
    ("relearned", "relearned-table", relearned.relearned_table),
    ("relearned", "relearned-profiles", relearned.relearned_profiles),
    ("relearned", "relearned-maps", relearned.relearned_maps),
)
OF_HEADS: tuple[tuple[str, str, OfHeads], ...] = (
    ("waves", "wave-columns", waves.wave_columns),
    ("waves", "wave-curves", waves.wave_curves),
    ("cross_spectrum", "cross-spectrum", shifts.cross_spectrum_offsets),
    ("phase_map", "phase-maps", shifts.phase_maps),
    ("cross_correlation", "cross-correlations", shifts.cross_correlations),
    ("position_content", "position-content", content.position_content),
    ("scheme_kernel", "scheme-kernel", kernel.scheme_kernel),
    ("rotation_effect", "rotation-effect", changes.scheme_effect),
    ("bias_effect", "bias-effect", changes.scheme_effect),
    ("interventions", "interventions", changes.interventions),
)


def write_explain_figures(
    tree: xr.DataTree,
    folder: Path,
    heads: Sequence[tuple[int, int]] | None = None,
    figures: Mapping[str, Figure] | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write every figure of an explanation, by default as SVG, PDF and PNG; return the files.

    Those of the papers are called ``paper_figure_1`` to ``paper_figure_9``.

    Parameters
    ----------
    tree
        From `explain`. Figures of analyses that it lacks are left out.
    folder
        Made if needed.
    heads
        Pairs (layer, head) for the figures of single heads; by default `best_heads`.
    figures
        From `explain_figures`, if they were drawn already.
    formats
        As in `save_figure`.

    Raises
    ------
    AttnscopeError
        If a head does not exist or the files cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.mechanism.components import principal_components
    >>> table = np.random.default_rng(0).normal(size=(64, 16))
    >>> tree = xr.DataTree.from_dict({"position_pca": principal_components(table)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_explain_figures(tree, Path(folder))]
    ['position-components.svg', 'position-components.pdf', 'position-components.png']
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    drawn = explain_figures(tree, heads) if figures is None else figures.items()
    for name, figure in drawn:
        paths = save_figure(figure, folder / name, formats)
        written += paths
        if "paper" in tree.children and name in SAME:
            written += [copyfile(path, path.with_stem(SAME[name])) for path in paths]
    return written


def explain_figures(
    tree: xr.DataTree, heads: Sequence[tuple[int, int]] | None = None
) -> Iterator[tuple[str, Figure]]:
    """Every figure that the tree has nodes for, with its name.

    Examples
    --------
    >>> import xarray as xr
    >>> list(explain_figures(xr.DataTree()))
    []
    """
    chosen = best_heads(tree) if heads is None else list(heads)
    for node, name, draw in WHOLE:
        if node in tree.children:
            result = tree[node].to_dataset()
            if name != "offset-agreement" or verdict.has_offsets(result).any():
                yield name, draw(result)
    models = _tables(tree)
    if len(models) > 1:
        yield "position-models", positions.position_spectrum({name: one[0] for name, one in models.items()})
        yield (
            "components-models",
            positions.position_components({name: one[1] for name, one in models.items()}),
        )
    for node, name, draw_heads in OF_HEADS:
        if node in tree.children:
            there = _there(tree[node].to_dataset(), chosen)
            if there:
                yield name, draw_heads(tree[node].to_dataset(), there)
    yield from paper_figures(tree)


def _tables(tree: xr.DataTree) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Spectrum and components of the tables of all models that are compared, by a name of their own."""
    if "also" not in tree.children:
        return {}
    found = [
        (str(one.attrs["model"]), one.to_dataset(), one.to_dataset())
        for one in tree["also"].children.values()
    ]
    if "position_spectrum" in tree.children:
        own = tree["position_spectrum"].to_dataset().sel(kind="positions")
        found = [(str(tree.attrs["model"]), own, tree["position_pca"].to_dataset()), *found]
    known: dict[str, tuple[xr.Dataset, xr.Dataset]] = {}
    for name, spectrum, components in found:
        again = sum(other.split(" (")[0] == name for other in known)
        known[f"{name} ({again + 1})" if again else name] = spectrum, components
    return known


def _there(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The heads that an analysis has values of: not all are defined in every layer."""
    layers, columns = axis_values(result, "layer"), axis_values(result, "head")
    found = [(layer, head) for layer, head in heads if layer in layers and head in columns]
    drawn = next((name for name in ("profile", "kernel") if name in result), None)
    if drawn is None:
        return found
    part = [result[drawn].sel(layer=layer, head=head).values for layer, head in found]
    return [head for head, values in zip(found, part, strict=True) if np.isfinite(values).any()]
