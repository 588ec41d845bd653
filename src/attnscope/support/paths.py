"""Asking a path what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def is_path(path: Path, kind: Literal["exists", "is_file", "is_dir"]) -> bool:
    """Whether there is such a file or folder; False for what is too long for a name."""
    try:
        return getattr(path, kind)()
    except OSError:  # a name that is too long
        return False
