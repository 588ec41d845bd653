"""The command as it is typed: ``attnscope ...``, or ``python -m attnscope ...``."""

from __future__ import annotations

import signal

from attnscope.support.errors import leave


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from attnscope.cli import main as run

    run()


if __name__ == "__main__":
    main()
