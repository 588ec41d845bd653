"""The command line within this process: starting Python and PyTorch anew takes longer than most commands."""

import io
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from subprocess import CompletedProcess
from unittest.mock import patch

import typer

from attnscope.cli import main
from attnscope.report.language import set_language

_of_app = cache(typer.main.get_command)  # typer makes it anew for each call, which a real process does once


def attnscope(*arguments, cwd, stdin=""):
    """What `subprocess.run` would give for the same words, typed in the folder `cwd`."""
    words = ["attnscope", *map(str, arguments)]
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    out, err = io.StringIO(), io.StringIO()
    with (
        chdir(cwd),
        patch.object(sys, "argv", words),
        patch.object(sys, "stdin", given),
        patch.object(typer.main, "get_command", _of_app),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            set_language("en")
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
