"""The figures of an explanation, all at once."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._returned import reads
from attnscope.checks import FORMATS
from attnscope.figures.explain._positions import position_components, position_spectrum
from attnscope.figures.reading import NothingToShowError, axis_values
from attnscope.figures.save import save_figure
from attnscope.mechanism import analyses_of, best_heads, known_analyses

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.mechanism import Analysis, Picture


@reads("explain")
def write_explain_figures(
    tree: xr.DataTree,
    folder: Path,
    heads: Sequence[tuple[int, int]] | None = None,
    figures: Mapping[str, Figure] | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write every figure of an explanation, by default as SVG, PDF and PNG; return the files.

    A figure that has a second name, such as that in a paper, is written under both.

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
    >>> from attnscope.mechanism.arrays import principal_components
    >>> table = np.random.default_rng(0).normal(size=(64, 16))
    >>> tree = xr.DataTree.from_dict({"position_pca": principal_components(table)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_explain_figures(tree, Path(folder))]
    ['position-components.svg', 'position-components.pdf', 'position-components.png']
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    drawn = explain_figures(tree, heads) if figures is None else figures.items()
    copies = {picture.same_as: picture.name for picture in _pictures(tree) if picture.same_as}
    for name, figure in drawn:
        paths = save_figure(figure, folder / name, formats)
        written += paths
        if name in copies:
            written += [copyfile(path, path.with_stem(copies[name])) for path in paths]
    return written


@reads("explain")
def explain_figures(
    tree: xr.DataTree, heads: Sequence[tuple[int, int]] | None = None
) -> Iterator[tuple[str, Figure]]:
    """Every figure that the tree has nodes for, with its name.

    Parameters
    ----------
    tree
        From `attnscope.explain`.
    heads
        Pairs (layer, head) of what is shown by head; by default `best_heads`.

    Examples
    --------
    >>> import xarray as xr
    >>> list(explain_figures(xr.DataTree()))
    []
    """
    chosen = best_heads(tree) if heads is None else list(heads)
    for analysis in known_analyses().values():
        there = analysis.name in tree.children
        for picture in analysis.pictures:
            if picture.draw and (there or picture.of == "tree"):
                figure = _drawn(tree, analysis, picture, chosen)
                if figure is not None:
                    yield picture.name, figure


def _drawn(
    tree: xr.DataTree, analysis: Analysis, picture: Picture, heads: Sequence[tuple[int, int]]
) -> Figure | None:
    draw: Any = pkgutil.resolve_name(picture.draw)
    if picture.of == "tree":
        return draw(tree)
    result = tree[analysis.name].to_dataset()
    if picture.of == "heads":
        shown = _there(result, heads)
        return draw(result, shown) if shown else None
    try:
        return draw(result, picture.variable) if picture.variable else draw(result)
    except NothingToShowError:
        return None


def _pictures(tree: xr.DataTree) -> list[Picture]:
    return [picture for analysis in analyses_of(tree) for picture in analysis.pictures]


def tables_of_models(tree: xr.DataTree) -> Figure | None:
    """Draw the position tables' waves of all models that are compared; None where there is one only.

    Examples
    --------
    >>> import xarray as xr
    >>> tables_of_models(xr.DataTree()) is None
    True
    """
    models = _tables(tree)
    return (
        position_spectrum({name: tables[0] for name, tables in models.items()}) if len(models) > 1 else None
    )


def components_of_models(tree: xr.DataTree) -> Figure | None:
    """Draw how few dimensions hold each model's position table; None where there is one only.

    Examples
    --------
    >>> import xarray as xr
    >>> components_of_models(xr.DataTree()) is None
    True
    """
    models = _tables(tree)
    return (
        position_components({name: tables[1] for name, tables in models.items()}) if len(models) > 1 else None
    )


def _tables(tree: xr.DataTree) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Spectrum and components of the tables of all models that are compared, by a name of their own."""
    if "also" not in tree.children:
        return {}
    tables = [
        (str(node.attrs["model"]), node.to_dataset(), node.to_dataset())
        for node in tree["also"].children.values()
    ]
    if "position_spectrum" in tree.children:
        own = tree["position_spectrum"].to_dataset().sel(kind="positions")
        tables = [(str(tree.attrs["model"]), own, tree["position_pca"].to_dataset()), *tables]
    known: dict[str, tuple[xr.Dataset, xr.Dataset]] = {}
    for name, spectrum, components in tables:
        again = sum(other.split(" (")[0] == name for other in known)
        known[f"{name} ({again + 1})" if again else name] = spectrum, components
    return known


def _there(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The heads that an analysis has values of: not all are defined in every layer."""
    layers, columns = axis_values(result, "layer"), axis_values(result, "head")
    known = [(layer, head) for layer, head in heads if layer in layers and head in columns]
    drawn = next((name for name in ("profile", "kernel") if name in result), None)
    if drawn is None:
        return known
    part = [result[drawn].sel(layer=layer, head=head).values for layer, head in known]
    return [head for head, values in zip(known, part, strict=True) if np.isfinite(values).any()]
