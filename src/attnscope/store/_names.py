"""Names of files in a run folder."""

from __future__ import annotations

from collections.abc import Iterable

SUFFIX = ".zarr.zip"
RUN = "run.json"
MANIFEST = "manifest.json"
WORKPLACE = ".attnscope"  # lock and unfinished files
VIEWS = ("report.html", "figures/")
PIECES = "pieces/"
TASKS = ".tasks"  # end of the name of the folder in which tasks keep their parts, beside the run


def piece_name(texts: range) -> str:
    """The file of the results of some texts.

    Examples
    --------
    >>> piece_name(range(0, 16))
    'pieces/000000000-000000015.zarr.zip'
    """
    return f"{PIECES}{texts.start:09d}-{texts.stop - 1:09d}{SUFFIX}"


def are_in(pieces: Iterable[range], texts: range) -> bool:
    """Whether all of some texts are in one of the pieces.

    Parameters
    ----------
    pieces
        Texts of each piece, by their numbers.
    texts
        Texts that are asked for.

    Examples
    --------
    >>> are_in([range(0, 8), range(16, 24)], range(4, 8)), are_in([range(0, 8), range(8, 16)], range(4, 12))
    (True, False)
    """
    return any(piece.start <= texts.start and texts.stop <= piece.stop for piece in pieces)


def texts_of(name: str) -> range:
    """The texts of a piece, from its file's name.

    Examples
    --------
    >>> texts_of("pieces/000000000-000000015.zarr.zip")
    range(0, 16)
    """
    first, last = name.removeprefix(PIECES).removesuffix(SUFFIX).split("-")
    return range(int(first), int(last) + 1)
