"""A scan as its run folder holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.statistics._catalogue import BY_GROUP, EQUAL
from attnscope.statistics._nowhere import notes_of_nowhere
from attnscope.statistics._numbering import numbering_note
from attnscope.statistics._profile import with_profile
from attnscope.statistics._short_windows import notes_of_short
from attnscope.store import RunFolder, Signature, read_as

if TYPE_CHECKING:
    import xarray as xr

NOTES = (
    "way",
    "unseen",
    "places",
    "beyond",
    "unknown",
    "doubled",
    "packed",
    "decoder",
    "causality",
    "bias",
    "padding",
    "tower",
    "pooling",
    "points",
    "random",
    "patches",
    "sounds",
    "pictures",
    "videos",
    "words",
    "pool",
    "until",
    "cached",
    "observation",
    "rows",
    "left_out",
)  # attributes that tell a reader what is not as expected
SUMMARY, SAMPLE, WINDOWS, HEADS = "summary", "sample", "windows", "heads"

_LOCAL = re.compile(r"\b(local|within [0-9]+)\b[^:,]*: [1-9]")


def unit_of(results: xr.Dataset) -> str:
    """What lengths and offsets count: words where tokens are merged to them, frames of sounds, else tokens.

    Examples
    --------
    >>> import xarray as xr
    >>> unit_of(xr.Dataset(attrs={"words": "Tokens are merged to words."}))
    'words'
    """
    if "words" in results.attrs:
        return "words"
    return "frames" if results.attrs.get("reads") == "sounds" else "tokens"


def notes_of(results: xr.Dataset) -> dict[str, str]:
    """What tells a reader what is not as expected, by name.

    Examples
    --------
    >>> import xarray as xr
    >>> notes_of(xr.Dataset(attrs={"beyond": "Windows may have 64 tokens.", "model": "small"}))
    {'beyond': 'Windows may have 64 tokens.'}
    """
    notes = {name: str(results.attrs[name]) for name in NOTES if name in results.attrs}
    notes = with_local_heads(notes, str(results.attrs.get("kinds", "")))
    notes = notes_of_short(results, notes) | notes_of_nowhere(results, unit_of(results))
    names = results["layer_name"].values.tolist() if "layer_name" in results.coords else []
    numbering = numbering_note([str(name) for name in names])
    return notes | ({"layers": numbering} if numbering else {})


def load_scan(run: RunFolder) -> xr.Dataset:
    """What `scan` returns, from the folder of a finished run.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from attnscope.statistics import scan
    >>> from attnscope.store import manifest_of
    >>> with TemporaryDirectory() as folder:
    ...     made = scan(texts=["The tide is out."], out=folder, statistics="entropy")
    ...     signature = manifest_of(Path(folder)).state["signature"]
    ...     with RunFolder(Path(folder), signature) as run:
    ...         bool((load_scan(run).entropy == made.entropy).all())
    True
    """
    with read_as(run.path):
        return _returned(run, run.results(), run.load(SUMMARY))


def load_heads(run: RunFolder) -> xr.Dataset | None:
    """What all texts of a finished scan with pools come to, head by head, with their kinds; no pool is read.

    None where the run keeps no such thing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import xarray as xr
    >>> with tempfile.TemporaryDirectory() as place, RunFolder(Path(place) / "run", {"command": "scan"}) as run:
    ...     before = load_heads(run)
    ...     run.save(HEADS, xr.Dataset({"entropy": (("layer", "head"), [[1.5, 0.5]])}))
    ...     run.finish(attributes={"model": "small"})
    ...     heads = load_heads(run)
    >>> before is None, heads.entropy.dims, heads.attrs["model"]
    (True, ('layer', 'head'), 'small')
    """
    heads, summary = run.load(HEADS), run.load(SUMMARY)
    if heads is None:
        return None
    if summary is not None:
        heads = heads.merge(
            summary.drop_dims("text", errors="ignore"), compat="override", combine_attrs="no_conflicts"
        )
    return heads.assign_attrs(
        {"signature": run.signature.to_json(), "model": run.signature.name} | run.state.get("attributes", {})
    )


def scan_pieces(run: RunFolder) -> Iterator[xr.Dataset]:
    """The same, piece by piece along ``text``: never more in memory than one, and the kinds of all texts.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope import scan
    >>> from attnscope.store import RunFolder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = scan(limit=4, window=32, batch_size=2, out=f"{place}/run")
    ...     with RunFolder(Path(place) / "run", json.loads(made.attrs["signature"])) as run:
    ...         sum(piece.sizes["text"] for piece in scan_pieces(run))
    4
    """
    summary = run.load(SUMMARY)
    for texts in run.pieces:
        part = summary
        if summary is not None and "text" in summary.dims:
            part = summary.isel(text=slice(texts.start, texts.stop))
        yield _returned(run, run.piece(texts), part)


def _returned(run: RunFolder, results: xr.Dataset, summary: xr.Dataset | None) -> xr.Dataset:
    names = (run.signature.settings or {})["statistics"]
    names = [*names, *(f"{name}{BY_GROUP}" for name in names)]
    if "profile" in names and "band_sum" in results:
        results = with_profile(results)
    known = [
        *names,
        *(f"{EQUAL}{name}" for name in names),
        "length",
        "target_length",
        "sampled_rows",
        "rows",
        "columns",
        "frames",
        "image_first",
        "image_tokens",
        "image_tiles",
        "image_rows",
        "image_columns",
        "video_first",
        "video_tokens",
        "video_frames",
        "video_rows",
        "video_columns",
    ]
    others = [name for name in results.data_vars if name not in known]
    results = results[[*(name for name in known if name in results), *others]]
    if summary is not None:
        results = results.merge(summary, combine_attrs="no_conflicts")
    results = results.assign_attrs(
        {"signature": run.signature.to_json(), "model": run.signature.name} | run.state.get("attributes", {})
    )
    results.encoding["source"] = str(run.path)
    return results


def keeps_maps_of(run: RunFolder, heads: Sequence[tuple[int, int]]) -> bool:
    """Whether the folder holds the attention that a page shows where these heads are asked for.

    For the command, which reads texts again only where it does not.

    Parameters
    ----------
    run
        Folder of a scan.
    heads
        Pairs (layer, head), in the order in which they are asked for.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope import scan
    >>> from attnscope.store import RunFolder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = scan(limit=2, window=32, out=f"{place}/run", show=[(0, 3)])
    ...     with RunFolder(Path(place) / "run", json.loads(made.attrs["signature"])) as run:
    ...         keeps_maps_of(run, [(0, 3)]), keeps_maps_of(run, [(0, 1)])
    (True, False)
    """
    sample = run.load(SAMPLE)
    return sample is not None and json.loads(sample.attrs["asked"]) == [list(place) for place in heads]


def default_out(signature: Signature | Mapping[str, object]) -> Path:
    """Where a command puts its results when nothing was said: one folder for each signature.

    Examples
    --------
    >>> default_out(Signature("scan", model={"name": "models/small"})).parts
    ('attnscope-runs', 'small-...')
    """
    signature = Signature.of(signature)
    return Path("attnscope-runs") / f"{Path(signature.name).name}-{signature.short}"


def with_local_heads(notes: dict[str, str], kinds: str) -> dict[str, str]:
    """Notes, without that on the bias where no head is named local.

    Examples
    --------
    >>> notes = {"bias": "It adds to scores."}
    >>> len(with_local_heads(notes, "Kinds of heads: previous: 2, local: 1.")), len(with_local_heads(notes, ""))
    (1, 0)
    """
    if _LOCAL.search(kinds):
        return notes
    return {name: note for name, note in notes.items() if name != "bias"}
