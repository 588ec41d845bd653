"""A run folder: results that carry their signature, grow batch by batch, and survive a kill."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr

from attnscope.errors import AttnscopeError
from attnscope.store._files import explained, write_json

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are not told apart there
    fcntl = None

if TYPE_CHECKING:
    from types import TracebackType

RUN, PROGRESS, RESULTS = "run.json", "progress.json", "results.zarr"


class RunFolder:
    """Results on disk under one signature.

    ``run.json`` holds the signature; ``results.zarr`` the arrays, longer with every `append`;
    ``progress.json`` how many texts of them are complete. What a killed run wrote beyond that mark is cut off
    when the folder is opened again, so a resumed run ends with the arrays of an unbroken one.

    Parameters
    ----------
    path
        The folder; made if absent.
    signature
        What the results depend on. A folder of another signature is refused.

    Raises
    ------
    AttnscopeError
        If the folder holds something else, belongs to another signature, is in use, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for _ in range(2):  # the second time it goes on
    ...         with RunFolder(Path(place) / "run", {"model": "m"}) as run:
    ...             run.append(xr.Dataset({"length": ("text", [3, 4])}))
    ...     run.results().length.values.tolist()
    [3, 4, 3, 4]
    """

    def __init__(self, path: Path, signature: dict[str, Any]) -> None:
        self.path = path
        self.signature = json.loads(json.dumps(signature))
        self.texts = 0
        self.complete = False
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:  # noqa: PYI034 beartype knows no Self here
        with explained(f"use {self.path} as a run folder", "Choose another folder with --out"):
            self.path.mkdir(parents=True, exist_ok=True)
            found = sorted(entry.name for entry in self.path.iterdir() if entry.name != ".lock")
            if (self.path / RUN).is_file():
                self._check_signature()
            elif [name for name in found if not name.endswith(".partial")]:
                raise AttnscopeError(
                    f"{self.path} holds other files ({found[0]}) and no {RUN}: choose an empty or new folder"
                )
            self._take_lock()
            if not (self.path / RUN).is_file():
                write_json(self.path / RUN, self.signature)
            self._resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def append(self, results: xr.Dataset) -> None:
        """Add the results of some texts; when this returns, they are safe.

        Raises
        ------
        AttnscopeError
            If the disk is full or the folder became unwritable: everything up to the last append is safe.
        """
        safe = f"The {self.texts} texts before are safe: free some room and run the same command to go on"
        with explained("write results", safe):
            store = self.path / RESULTS
            try:
                if self.texts:
                    results.to_zarr(store, append_dim="text", consolidated=False)
                else:
                    results.to_zarr(store, mode="w", consolidated=False)
            except OSError:
                if self.texts:
                    with suppress(OSError):  # no room even for that: it is done when the run goes on
                        self._trim()
                raise
            self._mark(self.texts + results.sizes["text"], complete=False)

    def finish(self) -> None:
        """Mark the run as complete."""
        with explained("write results", "Run the same command to go on"):
            self._mark(self.texts, complete=True)

    def save(self, name: str, dataset: xr.Dataset) -> None:
        """Write something that is computed from the results, whole or not at all."""
        with explained(
            f"write {name}", "The results are safe: free some room and run the same command to go on"
        ):
            temporary, final = self.path / f".{name}.partial", self.path / name
            shutil.rmtree(temporary, ignore_errors=True)
            _storable(dataset).to_zarr(temporary, mode="w", consolidated=False)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)

    def load(self, name: str) -> xr.Dataset | None:
        """Read what `save` wrote; None where it is not there."""
        path = self.path / name
        return xr.load_dataset(path, engine="zarr", consolidated=False) if path.is_dir() else None

    def results(self) -> xr.Dataset:
        """All results so far, in memory."""
        found = self.load(RESULTS)
        if found is None:
            raise AttnscopeError(f"{self.path} holds no results yet")
        return found.isel(text=slice(0, self.texts))

    def _mark(self, texts: int, *, complete: bool) -> None:
        write_json(self.path / PROGRESS, {"texts": texts, "complete": complete})
        self.texts, self.complete = texts, complete

    def _resume(self) -> None:
        """Cut off what was written after the last mark."""
        if (self.path / PROGRESS).is_file():
            progress = json.loads((self.path / PROGRESS).read_text(encoding="utf-8"))
            self.texts, self.complete = progress["texts"], progress["complete"]
        for leftover in self.path.glob(".*.partial"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        if not self.texts:
            shutil.rmtree(self.path / RESULTS, ignore_errors=True)
            return
        self._trim()

    def _trim(self) -> None:
        """Make all arrays as long as the mark says; a longer tail was being written when the run was stopped."""
        group = zarr.open_group(self.path / RESULTS, mode="r+")
        for _, array in group.arrays():
            names = getattr(array.metadata, "dimension_names", None) or ()
            if names and names[0] == "text" and array.shape[0] != self.texts:
                array.resize((self.texts, *array.shape[1:]))

    def _check_signature(self) -> None:
        try:
            found = json.loads((self.path / RUN).read_text(encoding="utf-8"))
        except ValueError as error:
            raise AttnscopeError(
                f"{self.path / RUN} is not readable as JSON: choose a new folder with --out"
            ) from error
        differing = _differences(found, self.signature)
        if differing:
            raise AttnscopeError(
                f"{self.path} holds another run: {differing[0]}. It is left as it is; choose a new folder with --out"
            )

    def _take_lock(self) -> None:
        self._lock = (self.path / ".lock").open("w", encoding="utf-8")
        if fcntl is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            self._lock = None
            raise AttnscopeError(
                f"another run is writing to {self.path}: wait for it, or choose a new folder with --out"
            ) from error


def _storable(dataset: xr.Dataset) -> xr.Dataset:
    """Strings of any length, which Zarr has a specification for, and attributes that its JSON can hold."""
    strings = {
        name: value.astype(object) for name, value in dataset.variables.items() if value.dtype.kind == "U"
    }
    clean = dataset.assign_coords({name: value for name, value in strings.items() if name in dataset.coords})
    clean = clean.assign({name: value for name, value in strings.items() if name not in dataset.coords})
    for holder in (clean, *clean.variables.values()):
        holder.attrs = {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in holder.attrs.items()
        }
    return clean


def is_finished(path: Path) -> bool:
    """Whether a folder holds a run that was finished.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, RunFolder(Path(place) / "run", {}) as run:
    ...     before = is_finished(run.path)
    ...     run.finish()
    ...     before, is_finished(run.path)
    (False, True)
    """
    try:
        return bool(json.loads((path / PROGRESS).read_text(encoding="utf-8"))["complete"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _differences(found: Any, wanted: Any, at: str = "") -> list[str]:
    """Where two signatures differ, in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted})  # pyright: ignore[reportUnknownArgumentType]
        return [
            text
            for key in keys
            for text in _differences(found.get(key), wanted.get(key), f"{at}.{key}" if at else str(key))  # pyright: ignore[reportUnknownMemberType]
        ]
    return [] if found == wanted else [f"its {at} is {_short(found)}, not {_short(wanted)}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004
