"""The command line: one file for each command; here what they share."""

from __future__ import annotations

import os
import sys

# Threads that wait by spinning slow down everything on a machine that is shared; set before PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import typer

from attnscope import __version__
from attnscope.cli.align import align
from attnscope.cli.compare import compare
from attnscope.cli.explain import explain
from attnscope.cli.scan import scan
from attnscope.cli.score import score
from attnscope.cli.train import train, with_settings
from attnscope.cli.translate import translate
from attnscope.cli.walk import walk
from attnscope.errors import AttnscopeError, out_of_memory

_INTERRUPTED = 130

app = typer.Typer(
    name="attnscope",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Where every attention head of a model looks (scan), and why it looks there (explain); what one head computes "
    "(walk); the attention lineage to train, translate with, score, align and compare.",
)
app.command()(scan)
app.command()(explain)
app.command()(walk)
app.command()(with_settings(train))
app.command()(translate)
app.command()(score)
app.command()(align)
app.command()(compare)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnscope {__version__}")
        raise typer.Exit


@app.callback()
def _globals(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 0, 2 for what the user can mend, 130 when interrupted."""
    try:
        app()
    except SystemExit as left:
        if left.code == _INTERRUPTED:  # typer has made it of a Ctrl-C
            print("attnscope: stopped", file=sys.stderr)  # noqa: T201
        raise
    except BrokenPipeError:  # the reader of our output has left
        sys.stderr.close()
        raise SystemExit(0) from None
    except Exception as error:
        known = error if isinstance(error, AttnscopeError) else out_of_memory(error)
        if known is None:
            raise
        print(f"attnscope: {known}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None
