"""An alignment in a folder, by one process or by several: what is there already, what a task does, what is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.store import VIEWS, InUseError, OwnedFolder, explained, in_a_row
from attnscope.tasks import Part, Parts, Share, Task, do_share, pending
from attnscope.translation.alignment._aligned import Aligned, aligned_of
from attnscope.translation.alignment._stored import LINKS, RECORD, load_alignment, write_alignment

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.store import Signature
    from attnscope.translation.alignment._work import Work

_ASKED = "asked"  # in the folder's state: the signature of all that was asked for


def kept(work: Work, folder: Path, task: Task | None, shown: int) -> Aligned:
    """The alignment of a text, read from its folder or made and written there.

    Parameters
    ----------
    task
        Which part of it this process does; None for all.

    Returns
    -------
    Aligned
        Without links, where others have still to do their part or are putting all together now.

    Raises
    ------
    AttnscopeError
        If the folder holds other files or is in use, or a part is damaged or of another run.
    """
    asked = work.signature_of_all(shown)
    there = _there(OwnedFolder(folder, "align").look(), asked)
    if there is not None:
        return there
    if task is None or not work.sources:
        with OwnedFolder(folder, "align") as owned:
            return _written(work, owned, asked, shown)

    def measure(part: Part, share: Share) -> None:
        for links in work.units(share):
            part.append(links, int(links.text[0]))

    waiting = Aligned(
        work.identity["name"], None, None, False, [], None, None, 0, [], asked.to_json(),
        pending(task, folder, asked)["task"],
    )  # fmt: skip
    if not do_share(task, folder, asked, measure, {}).is_whole():
        return waiting
    try:
        owned = OwnedFolder(folder, "align").__enter__()
    except InUseError:  # another one that was done at the same moment
        return waiting
    with owned:
        return _there(owned, asked) or _written(work, owned, asked, shown)


def _there(folder: OwnedFolder, asked: Signature) -> Aligned | None:
    """What was asked for, where an earlier process made it and nothing has befallen it since."""
    if folder.state.get(_ASKED) != asked.to_dict() or folder.damaged([LINKS, RECORD]):
        return None
    return load_alignment(folder)


def _written(work: Work, folder: OwnedFolder, asked: Signature, shown: int) -> Aligned:
    """Make the alignment, from the parts that tasks have left where these are whole, and write it."""
    parts = Parts(folder.path, asked)
    aligned = aligned_of(work, parts.results() if parts.is_whole() else in_memory(work), shown)
    where = "Choose another folder with --out, or free some room"
    with (
        explained(f"write to {folder.path}", where),
        folder.replacing(LINKS, RECORD, *VIEWS, views=None, **{_ASKED: asked.to_dict()}) as new,
    ):
        write_alignment(aligned, new)
    parts.drop()
    return load_alignment(folder)


def in_memory(work: Work) -> xr.Dataset | None:
    """All units; None where there are no pairs."""
    units = list(work.units())
    return in_a_row(units) if units else None
