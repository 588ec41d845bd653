"""The command as it is typed: ``attnscope ...``, or ``python -m attnscope ...``."""

import gc
import signal

from attnscope.support.errors import leave


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    gc.disable()  # until all is imported: it would go through millions of objects that stay
    from attnscope.cli import main as run

    run()


if __name__ == "__main__":
    main()
