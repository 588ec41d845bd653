"""The command as it is typed: ``attnscope ...``, or ``python -m attnscope ...``."""

from __future__ import annotations

import os
import signal


def leave(*_: object) -> None:
    """Stop at once: while modules are still imported there is nothing to put in order."""
    os.write(2, b"attnscope: stopped\n")
    os._exit(130)


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from attnscope.cli import main as run

    run()


if __name__ == "__main__":
    main()
