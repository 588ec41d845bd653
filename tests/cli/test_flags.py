"""What a command takes has one name: that of its flag is that of the parameter in Python."""

import inspect

import pytest
import typer

import attnscope
from attnscope.cli import app

COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()
    if name in attnscope.__all__ and name != "train"  # its flags are the fields of `TrainConfig`
}
WRITTEN = {"json", "csv", "figures", "report"}  # what a command prints and writes beside its results
FLAGS_ALONE = {
    "explain": {"paper", "published_as", "relearn"},  # in Python: more=yamamoto2023.analyses(...)
    "generate": {"prompt"},  # in Python: a string among the texts
    "translate": {"out"},  # in Python: .texts of the result
    "walk": {"lang", "markdown", "toy", "seed"},
}
PARAMETERS_ALONE = {
    "align": {"every_head"},
    "explain": {"intervention_texts", "longest", "more"},
    "translate": {"scores"},
}


def flags_of(command):
    """Long names of the options and names of the arguments, as identifiers."""
    for parameter in command.params:
        name = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
        yield name.lstrip("-").replace("-", "_")


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_and_parameters_have_the_same_names(name):
    parameters = {*inspect.signature(getattr(attnscope, name)).parameters} - {"progress"}
    flags = {*flags_of(COMMANDS[name])} - WRITTEN - FLAGS_ALONE.get(name, set())
    # a flag that may be repeated is in the singular
    named = {flag if flag in parameters else f"{flag}s" for flag in flags}
    assert named == parameters - PARAMETERS_ALONE.get(name, set())
