"""Names of files in a run folder."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnscope.errors import AttnscopeError

SUFFIX = ".npz"
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
    'pieces/000000000-000000015.npz'
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

    Raises
    ------
    AttnscopeError
        If pieces are not named so: another version wrote it.

    Examples
    --------
    >>> texts_of("pieces/000000000-000000015.npz")
    range(0, 16)
    """
    numbers = re.fullmatch(rf"{PIECES}([0-9]{{9,12}})-([0-9]{{9,12}}){re.escape(SUFFIX)}", name)
    if numbers is None or int(numbers[1]) > int(numbers[2]):
        raise AttnscopeError(
            f"results lie in {name}; expected a name such as {piece_name(range(16))}: another version of attnscope "
            "wrote them, so give the command again in a new folder"
        )
    return range(int(numbers[1]), int(numbers[2]) + 1)
