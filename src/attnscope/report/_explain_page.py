"""Writing the page of an explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._returned import reads
from attnscope.errors import AttnscopeError
from attnscope.mechanism import best_heads
from attnscope.mechanism.words import findings, layer_numbers, mask_note
from attnscope.report._embed import STYLES, write_page
from attnscope.report._explain_content import forms, hints, sections, skipped, table, text_tables
from attnscope.report._scan_content import parsed

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


@reads("explain")
def write_explain_report(
    tree: xr.DataTree,
    path: Path | str,
    heads: Sequence[tuple[int, int]] | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> Path:
    """Write an explanation as one HTML page that needs no network, no server and no other file.

    The page has a section for each analysis with its figures and how to read them, a table of all heads that a
    click on a heading sorts, what could not be analysed and why, and the signature of the numbers.

    Parameters
    ----------
    tree
        From `explain`; any analysis may be absent.
    path
        The file to write; its folder is made if needed.
    heads
        Pairs (layer, head) for the figures of single heads; by default `best_heads`.
    figures
        From `explain_figures`, if they were drawn already.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    AttnscopeError
        If there is nothing to show, a head does not exist, or the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.mechanism.arrays import principal_components
    >>> from attnscope.report import write_explain_report
    >>> table = np.random.default_rng(0).normal(size=(64, 16))
    >>> tree = xr.DataTree.from_dict({"position_pca": principal_components(table)})
    >>> tree.attrs["model"] = "made-up"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_explain_report(tree, Path(folder) / "report.html").read_text(encoding="utf-8")
    >>> page[:15], "Why the heads of <bdi>made-up</bdi> look where they look" in page
    ('<!doctype html>', True)
    """
    chosen = best_heads(tree) if heads is None else list(heads)
    shown = sections(tree, chosen, figures)
    columns, rows = table(tree)
    if not shown and not rows:
        raise AttnscopeError("The explanation holds no analysis that a page could show.")
    signature = parsed(tree.attrs.get("signature", "{}"))
    return write_page(
        Path(path),
        "explain.html.j2",
        styles=STYLES,
        scripts=("sort.js",),
        signature=signature,
        model=str(tree.attrs.get("model", "the model")),
        settings=_settings(signature),
        decoder=" ".join(filter(None, [str(tree.attrs.get("decoder", "")), layer_numbers(tree)])),
        findings=findings(tree),
        method=mask_note(tree),
        heads=[f"{layer}.{head}" for layer, head in chosen],
        sections=shown,
        tables=text_tables(tree, shown),
        columns=columns,
        rows=rows,
        hints=hints(tree),
        there={*map(str, tree.children), *(key for key, _, _ in columns)},
        skipped=skipped(tree),
        forms=forms(tree),
    )


def _settings(signature: Any) -> dict[str, int]:
    """How many windows of how many tokens, where the signature tells."""
    settings: Any = signature.get("settings") if isinstance(signature, dict) else None
    if not isinstance(settings, dict):
        return {}
    return {name: settings[name] for name in ("windows", "window") if isinstance(settings.get(name), int)}
