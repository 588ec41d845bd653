"""The command line: commands derive from the verbs."""

import logging
import os
import sys
from typing import Any

# Threads that wait by spinning slow down everything on a machine that is shared; set before PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import typer

from attnscope import __version__
from attnscope.catalogue import verbs
from attnscope.cli import options, runs
from attnscope.cli.output import abandon, prepare, print_note
from attnscope.support.errors import AttnscopeError, nearest, out_of_memory, panicked, reason_of, unimportable

_INTERRUPTED = 130
_UsageError: Any = typer.BadParameter.__base__  # typer does not export it

app = typer.Typer(
    name="attnscope",
    cls=options.Root,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=options.SETTINGS,
    help="Measure where every attention head of a model attends, why it attends there, and whether it matters.",
)
app.add_typer(runs.app, name="runs", rich_help_panel="Runs")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnscope {__version__}")
        raise typer.Exit


@app.callback()
def _globals(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Version of attnscope; runs no command."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 0, 2 for an error of the user, 130 when interrupted."""
    prepare()
    for name in ("torchao", "torch.utils._pytree"):  # torchao, if installed, warns about parts of other machines
        logging.getLogger(name).setLevel(logging.ERROR)
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or _unwritten(error)
    raise SystemExit(code)


def _run() -> int:
    try:
        code = app(prog_name="attnscope", standalone_mode=False) or 0
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            print_note(f"attnscope: {_usage_error(error)}")
        return 2
    except BrokenPipeError:  # the reader of our output has left
        abandon(sys.stdout)
        return 0
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    except BaseException as error:
        if panicked(error):  # in Rust, as a tokenizer does on files that are damaged
            print_note(
                f"attnscope: a library fails ({reason_of(error)}). Are the model's and the tokenizer's files whole?"
            )
            return 2
        if not isinstance(error, Exception):
            raise
        known = error if isinstance(error, AttnscopeError) else out_of_memory(error) or unimportable(error)
        if known is not None:
            print_note(f"attnscope: {known}")
            return 2
        if isinstance(error, OSError):
            return _unwritten(error)
        raise
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this code
        print_note("attnscope: stopped")
    return code


_EXPECTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
}


def _usage_error(error: Any) -> str:
    """A wrong command line: what was found, what was expected, and where to look it up."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[0].lower() + message[1:]
    option, suggested, others = message.partition(" (Possible options: ")
    if suggested:  # the library lists options that have little in common with what was typed
        message = option + nearest(option.rpartition(" ")[2], others.rstrip(")").split(", "))
    missing, chooses, names = message.partition(". Choose from: ")
    if chooses:
        message = f"{missing}; expected one of {names}"
    elif message.startswith("missing option"):
        message += f". {error.param.help.partition('. ')[0].rstrip('.')}"
    if hasattr(error.__cause__, "errors"):  # of pydantic, by which typer reads values
        from attnscope.support.checks import shortly

        (first,) = error.__cause__.errors()
        choices = str(first["msg"]).rstrip(".").partition(" is not one of ")[2]
        expected = _EXPECTED.get(first["type"], "").format_map(first.get("ctx", {}))
        name = error.param.get_error_hint().strip("'")
        if choices:
            near = nearest(str(first["input"]), choices.replace("'", "").split(", "))
            message = f"{name} is {shortly(first['input'])}; expected one of {choices}" + near
        elif expected:
            message = f"{name} is {shortly(first['input'])}; expected {expected}"
    named = [one for one in sys.argv[1:2] if one in verbs()]  # an option without its value is of no context
    words = named if error.ctx is None else error.ctx.command_path.split()[1:]
    end = "" if message.endswith("?") else "."
    return f"{message}{end} For help: attnscope {' '.join([*words, '--help'])}"


def _unwritten(error: OSError) -> int:
    """Report an error of the system: most often the standard output is full or closed."""
    abandon(sys.stdout)
    what = f"{error.filename} cannot be used" if error.filename else "standard output cannot be written"
    print_note(f"attnscope: {what}: {(error.strerror or str(error)).lower()}. Results in a run folder are safe")
    return 2
