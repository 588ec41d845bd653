"""Parts of a result: read from a run folder, or made and written to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.units import by_task, pending
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.store.signature import Signature
    from attnscope.store.units import Batches, Task


class StoredParts:
    """Parts of a result: those that a run folder holds are read, others made and written."""

    def __init__(self, run: RunFolder | None) -> None:
        self.run = run
        self.parts: dict[str, xr.Dataset] = {}

    def get(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """The part of that name, made if it is not there yet."""
        stored = None if self.run is None else self.run.load(name)
        if stored is None:
            stored = make()
            if self.run is not None:
                self.run.save(name, stored)
                stored = self.run.load(name) or stored  # as a later call will read it
        self.parts[name] = stored
        return stored


def tree_in_folder(
    out: str | Path | Callable[[Signature], Path],
    signature: Signature,
    task: Task | None,
    batches: Batches,
    whole: Callable[[RunFolder], xr.DataTree],
    attributes: dict[str, str],
    *,
    repair: bool,
) -> xr.DataTree:
    """Results in a run folder, by this process alone (`whole`), or its task of them (see `by_task`)."""
    folder = Path(out(signature) if callable(out) else out)
    if task is None or is_finished(folder):
        with RunFolder(folder, signature, repair=repair) as run:
            return whole(run)
    tree = by_task(task, folder, signature, batches, whole, attributes, repair=repair)
    return xr.DataTree(xr.Dataset(attrs=pending(task, folder, signature))) if tree is None else tree


@validated
def load_intervention(run: RunFolder) -> xr.DataTree:
    """The tree that `intervene` returned, from the folder of a finished run."""
    return stored_tree(run, {"effects": run.results()})


def stored_tree(run: RunFolder, measured: dict[str, xr.Dataset]) -> xr.DataTree:
    """What was measured and the parts made of it, with the attributes of a finished run."""
    parts = dict(measured)
    for name in run.state["parts"]:
        part = run.load(name)
        if part is None:
            raise AttnscopeError(
                f"{run.path} has no {name}: give the same command again, which makes anew what is not there"
            )
        parts[str(name)] = part
    tree = xr.DataTree.from_dict(parts)
    tree.attrs = {**run.state["attributes"], "run": str(run.path)}
    return tree
