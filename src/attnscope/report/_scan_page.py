"""Writing the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._returned import reads
from attnscope.errors import AttnscopeError
from attnscope.figures.reading import HIGH, LOW, of_entries
from attnscope.figures.text import with_minus
from attnscope.report._contrast_content import contrast_data
from attnscope.report._embed import script_json, write_page
from attnscope.report._group_content import group_data, group_rows
from attnscope.report._long_map import pack_long
from attnscope.report._received import pack_received
from attnscope.report._scan_content import any_known, flatten, page_data, parsed, pieces_note
from attnscope.report._scan_images import patch_data, picture_data, view_data
from attnscope.report._window import pack_windows
from attnscope.statistics import ESTIMATED, layers_said, notes_of, unit_of

if TYPE_CHECKING:
    import xarray as xr

_SCRIPTS = (
    "draw.js",
    "patches.js",
    "window.js",
    "received.js",
    "long.js",
    "blocks.js",
    "offsets.js",
    "page.js",
)


@reads("scan")
def write_report(result: xr.Dataset, sample: xr.Dataset | None, path: Path | str) -> Path:
    """Write a result as one HTML page that needs no network, no server and no other file.

    The page shows all heads as a grid, coloured by any statistic or as pies of label shares, and for a chosen
    head its profile over offsets, its labels, its distribution over texts and its weights in one window. Its
    size does not grow with the number of texts. It is written beside the target and then put in its place.

    Parameters
    ----------
    result
        The result of a scan, with dimensions text, layer, head, offset and cluster; any statistic may be
        absent.
    sample
        The attention over a few windows, as `attnscope.scan` keeps it in ``.encoding["sample"]`` or, of a run
        folder, in ``sample.npz``; None leaves that part of the page out.
    path
        The file to write; its folder is made if needed.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    AttnscopeError
        If the result has nothing to show, the sample has other heads than the result, or the file cannot be
        written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.report import write_report
    >>> entropy = np.random.default_rng(0).gamma(4.0, 0.5, size=(10, 3, 4))  # (text, layer, head), nats
    >>> result = xr.Dataset({"entropy": (("text", "layer", "head"), entropy)}, attrs={"model": "made-up"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(result, None, Path(folder) / "report.html").read_text(encoding="utf-8")
    >>> page[:15], "Where the heads of made-up look" in page
    ('<!doctype html>', True)
    """
    data = page_data(result)
    data["quantiles"] = [LOW, HIGH]
    data["groups"] = group_data(result)
    data["unit"] = unit_of(result)
    data["patches"] = patch_data(result)
    window = received = long = None
    if sample is not None:
        _check_same_heads(result, sample)
        window = pack_windows(sample)
        shown = [[len(text["tokens"]) for text in texts] for texts in window.shared["windows"]]
        received = pack_received(sample, shown)
        long = pack_long(sample)
        data["window"] = window.shared | {"pictures": picture_data(sample), "views": view_data(sample)}
    signature = parsed(result.attrs.get("signature", "{}"))
    summary = parsed(result.attrs.get("summary", "{}"))
    return write_page(
        Path(path),
        "page.html.j2",
        styles=("page.css",),
        scripts=_SCRIPTS,
        signature=signature,
        model=str(result.attrs.get("model", "the model")),
        corpus=_corpus(result, signature),
        texts=result.sizes.get("text", 0),
        tokens=_total(result, "length"),
        unit=unit_of(result),
        target_tokens=_total(result, "target_length"),
        decoder=_notes(result),
        estimated=with_minus("".join(notes_of(result).get("rows", "").partition(ESTIMATED)[1:])),
        layers=len(data["layers"]),
        layers_said=layers_said(result),
        heads=len(data["heads"]),
        statistics=data["statistics"],
        has_equal=any("equal" in entry for entry in data["statistics"]),
        has_labels=data["labels"] is not None,
        clustered="clusters" in (summary or {}),
        has_profile=data["profile"] is not None,
        has_band=data["profile"] is not None and any_known(data["profile"]["high"]),
        has_spread=any(any_known(statistic.get("high", [])) for statistic in data["statistics"]),
        offsets=data["offsets"],
        blocks=data["blocks"],
        opens=data["opens"]["says"],
        groups=group_rows(result),
        contrasts=contrast_data(result),
        pools=_total(result, "window_count"),
        has_patches=data["patches"] is not None,
        noun=data["noun"],
        images=result.attrs.get("reads") == "images",
        window=data.get("window"),
        has_received=received is not None,
        has_recent=bool(received and received["recent"]),
        has_long=long is not None,
        pieces=pieces_note(
            token for texts in window.shared["windows"] for text in texts for token in text["tokens"]
        )
        if window
        else "",
        quantiles=f"{LOW * 100:.0f}–{HIGH * 100:.0f}%",
        summary=[(of_entries(name, data["noun"]), *row) for name, *row in flatten(summary)]
        if summary
        else [],
        data=script_json(data),
        packed=script_json({"maps": window.maps, "tiles": window.tiles, "received": received, "long": long})
        if window
        else None,
    )


def _notes(result: xr.Dataset) -> str:
    """What a reader has to know of how the model was read."""
    notes = notes_of(result)
    notes |= {"rows": notes.get("rows", "").partition(ESTIMATED)[0].strip()}  # the rest stands below
    return with_minus(" ".join(filter(None, [*notes.values(), str(result.attrs.get("kinds", ""))])))


def _check_same_heads(result: xr.Dataset, sample: xr.Dataset) -> None:
    for dim in ("layer", "head"):
        sampled, expected = sample.sizes.get(dim), result.sizes.get(dim)
        if sampled != expected:
            raise AttnscopeError(
                f"The sample has {sampled} {dim}s and the result {expected}: they must agree."
            )


def _total(result: xr.Dataset, name: str) -> int | None:
    return int(result[name].sum()) if name in result.variables else None


def _corpus(result: xr.Dataset, signature: Any) -> str:
    """The corpus by its name, where the result or its signature tells one."""
    corpus: Any = result.attrs.get("corpus")
    if corpus is None and isinstance(signature, dict):
        corpus = signature.get("corpus")
    if isinstance(corpus, dict):
        corpus = corpus.get("name") or corpus.get("path") or corpus.get("hash")
    return str(corpus) if corpus else ""
