"""How a command stops at once."""

from __future__ import annotations

import os


def leave(*_: object) -> None:
    """Stop at once: while modules are still imported there is nothing to put in order."""
    os.write(2, b"attnscope: stopped\n")
    os._exit(130)
