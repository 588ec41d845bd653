"""The folder that a user names for a run: a local one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from attnscope.errors import AttnscopeError
from attnscope.remote import Url, is_url, refuse_path_of_url

P = ParamSpec("P")
R = TypeVar("R")


def local_folder(given: str | Path) -> Path:
    """The folder of a run, as a user named it.

    Raises
    ------
    AttnscopeError
        It is a URL, or has no name.

    Examples
    --------
    >>> local_folder("runs/tide")
    PosixPath('runs/tide')
    >>> local_folder("s3://bucket/run")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: s3://bucket/run is a URL; expected a local folder: a run is written and read ...
    """
    if is_url(given):
        raise AttnscopeError(
            f"{Url(str(given))} is a URL; expected a local folder: a run is written and read on a local disk alone"
        )
    if not str(given) or "\0" in str(given):
        raise AttnscopeError(f"the folder of a run is {str(given)[:80]!r}; expected the name of a folder")
    refuse_path_of_url(Path(given))
    return Path(given)


def local_out(verb: Callable[P, R]) -> Callable[P, R]:
    """Let a function reject an `out` that is no local folder before it does anything."""

    @wraps(verb)
    def checked(*arguments: P.args, **given: P.kwargs) -> R:
        place = given.get("out")
        if isinstance(place, str | Path):
            given["out"] = local_folder(place)
        return verb(*arguments, **given)

    return checked
