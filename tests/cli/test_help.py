"""The help of every parameter of every command names a thing, and ends."""

import re

import pytest
import typer

from attnscope.cli import app
from tests.cli.command import attnscope

COMMANDS = {"attnscope": typer.main.get_command(app)}
COMMANDS |= COMMANDS["attnscope"].commands
COMMANDS |= {f"runs {name}": command for name, command in COMMANDS["runs"].commands.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_help(name):
    command = COMMANDS[name]
    assert command.get_help(command.make_context(name, [], resilient_parsing=True)).startswith("Usage: ")


@pytest.mark.parametrize("name", ["scan", "explain", "intervene", "roles", "generate", "patch"])
def test_a_help_fits_two_screens_and_opens_with_three_examples(name, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    lines = attnscope(name, "--help", cwd=tmp_path).stdout.splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 100
    start = lines.index("  Examples:")
    assert [line.split()[:2] for line in lines[start + 1 : start + 4]] == [["attnscope", name]] * 3
    headings = [line for line in lines if re.fullmatch("[A-Z][a-z]+:", line)]
    assert headings == ["Input:", "Model:", "Measure:", "Output:", "Scale:"]


def test_the_help_groups_the_commands(tmp_path):
    lines = attnscope("--help", cwd=tmp_path).stdout.splitlines()
    headings = [line.strip(":") for line in lines if re.fullmatch("[A-Z][a-z]+:", line)]
    assert headings == ["Options", "Look", "Explain", "Test", "Compare", "Translate", "Runs"]
