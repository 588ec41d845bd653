"""Files of repositories on the hub: fetched, or those that this machine has where there is no way to the hub."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants
from transformers.utils.hub import cached_file


def fetched(source: str, name: str, revision: str | None = None) -> Path | None:
    """The file of that name of a repository, in this machine's cache; None where the repository has none.

    Without a way to the hub it is what the cache has, at once: `huggingface_hub` would try again and again, for half a
    minute a file.

    Raises
    ------
    OSError
        If there is no such repository, or nothing of it where the hub cannot be reached.
    """
    file = cached_file(
        source,
        name,
        revision=revision,
        local_files_only=out_of_reach(),
        _raise_exceptions_for_missing_entries=False,
    )
    return None if file is None else Path(file)


def out_of_reach() -> bool:
    """Whether there is no way to the hub, so that only what the cache has can be read."""
    return constants.HF_HUB_OFFLINE or not has_address(urlsplit(constants.ENDPOINT).hostname or "")


@cache
def has_address(host: str) -> bool:
    """Whether a host's name is known here, or a proxy may know it; asked once.

    Examples
    --------
    >>> has_address("localhost"), has_address("nobody.invalid")
    (True, False)
    """
    if getproxies().keys() & {"http", "https", "all"}:
        return True
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
