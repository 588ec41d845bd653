"""Opening what a command left in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from attnscope._arguments import typed
from attnscope.checks import check_kind
from attnscope.errors import AttnscopeError
from attnscope.results._run_list import Run, is_complete
from attnscope.store import (
    MANIFEST,
    VIEWS,
    OwnedFolder,
    RunFolder,
    damage,
    local_folder,
    manifest_of,
    read_as,
)

if TYPE_CHECKING:
    from attnscope.translation.alignment import Aligned

_OF_TEXTS = {"scan", "generate", "roles", "explain", "intervene", "patch", "diff"}


@typed
def open_run(path: str | Path, *, part: str | None = None) -> xr.Dataset | xr.DataTree | Aligned:
    """Open the results of a finished run, as the command's function returned them.

    Parameters
    ----------
    path
        Folder of a run of ``scan``, ``generate``, ``roles``, ``explain``, ``intervene``, ``patch``, ``diff``,
        ``align``, ``compare`` or ``train``.
    part
        ``"windows"`` opens what a scan with pools keeps of every window, instead of its pools; ``"heads"`` what all of
        them come to, head by head (see `attnscope.statistics.over_documents`), for which no pool is read. ``"sample"``
        opens what the page of a scan shows of its first windows: weights, what each key received, and the blocks of a
        long window; a run made with ``--no-report`` has none.

    Returns
    -------
    xarray.Dataset, xarray.DataTree or attnscope.translation.alignment.Aligned
        What `attnscope.scan`, `attnscope.generate`, `attnscope.roles`, `attnscope.diff` and `attnscope.train` (a
        Dataset), `attnscope.explain`, `attnscope.intervene`, `attnscope.patch` and `attnscope.compare` (a DataTree) and
        `attnscope.align` (an `Aligned`) returned. Nothing is measured or trained anew, and no model is loaded.

    Raises
    ------
    AttnscopeError
        If the folder holds no run, the run is unfinished, or a file is not what was written.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as place:
    ...     result = attnscope.scan(texts=["The tide is out."], out=Path(place) / "run")
    ...     attnscope.open_run(Path(place) / "run").identical(result)
    True
    """
    check_kind("a folder", str, Path, path=path)
    return _opened(local_folder(path), part)


def _opened(folder: Path, part: str | None) -> xr.Dataset | xr.DataTree | Aligned:
    manifest = manifest_of(folder)
    if manifest is None:
        raise AttnscopeError(
            f"{folder} holds no run of attnscope (no {MANIFEST}): give the folder that a command named as its results"
        )
    command, state = manifest.command, manifest.state
    if not is_complete(manifest):
        raise unfinished(folder, command)
    if command in _OF_TEXTS:
        if part is not None:
            return _part_of(RunFolder(folder, state.get("signature", {})), part)
        with RunFolder(folder, state.get("signature", {})) as run, read_as(folder):
            return _of_texts(run)
    if part is not None:
        raise AttnscopeError(f"{folder} has no part {part!r}: only scans have parts")
    owned = OwnedFolder(folder, command).look()
    damaged = [name for name in owned.damaged() if not name.startswith(VIEWS)]
    if damaged:
        raise damage(folder / damaged[0], ". Give the same command again, which makes it anew")
    with read_as(folder):
        return _of_translation(owned)


def _part_of(run: RunFolder, part: str) -> xr.Dataset:
    from attnscope.statistics import HEADS, SAMPLE, WINDOWS, load_heads

    run.look()  # only what is read is checked: a large run would take minutes
    there = {
        WINDOWS: lambda: run.apart(WINDOWS),
        HEADS: lambda: load_heads(run),
        SAMPLE: lambda: run.load(SAMPLE),
    }
    with read_as(run.path):
        opened = there[part]() if part in there else None
    if opened is None:
        raise AttnscopeError(
            f"{run.path} has no part {part!r}; a scan with --pool has the parts {WINDOWS!r} and {HEADS!r}, one with a "
            f"page has {SAMPLE!r}"
        )
    return opened


def read_run(run: Run) -> xr.Dataset | xr.DataTree | Aligned:
    """The same, but that only those files are checked which are read, and nothing is written.

    Raises
    ------
    AttnscopeError
        If the run is unfinished, or one of these files is not what was written.
    """
    if not run.complete:
        raise unfinished(run.path, run.command)
    with read_as(run.path):
        if run.command in _OF_TEXTS and run.signature is not None:
            folder = RunFolder(run.path, run.signature)
            folder.look()
            return _of_texts(folder)
        return _of_translation(OwnedFolder(run.path, run.command).look())


def unfinished(folder: Path, command: str) -> AttnscopeError:
    """The error for a run that has no results yet."""
    return AttnscopeError(
        f"{folder} holds an unfinished run of attnscope {command}: give the same command again, which goes on there"
    )


def _of_texts(run: RunFolder) -> xr.Dataset | xr.DataTree:
    if run.command == "scan":
        from attnscope.statistics import load_scan

        return load_scan(run)
    if run.command == "generate":
        from attnscope.statistics.generation import load_generation

        return load_generation(run)
    if run.command == "diff":
        from attnscope.difference import load_difference

        return load_difference(run)
    if run.command == "roles":
        from attnscope.detection import load_roles

        return load_roles(run)
    if run.command == "intervene":
        from attnscope.faithfulness import load_intervention

        return load_intervention(run)
    if run.command == "patch":
        from attnscope.faithfulness import load_patching

        return load_patching(run)
    from attnscope.mechanism import load_explanation

    return load_explanation(run)


def _of_translation(folder: OwnedFolder) -> xr.Dataset | xr.DataTree | Aligned:
    if folder.command == "align":
        from attnscope.translation.alignment import load_alignment

        return load_alignment(folder)
    if folder.command == "train":
        from attnscope.training import training_results

        return training_results(folder)
    from attnscope.comparison import load_comparison

    return load_comparison(folder)
