"""The help of every parameter of every command names a thing, and ends."""

import re

import pytest
import typer

from attnscope.cli import app
from tests.cli.command import attnscope

COMMANDS = {"attnscope": typer.main.get_command(app)}
COMMANDS |= COMMANDS["attnscope"].commands
COMMANDS |= {f"runs {name}": command for name, command in COMMANDS["runs"].commands.items()}
HELPS = {
    f"{command} {parameter.name}": parameter.help or ""
    for command, parsed in COMMANDS.items()
    for parameter in parsed.params
}
#: What opens a sentence that tells to do something, or that names nothing.
NO_NOUN = re.compile(
    r"(a|also|an|any|are|by|can|choose|cut|do|draw|for|give|how|if|is|keep|let|make|measure|of|only|print|put"
    r"|read|say|set|show|take|tell|that|the|this|to|use|what|when|where|whether|which|with|write)\b",
    re.IGNORECASE,
)


def test_help_of_a_parameter_is_a_noun_phrase_without_the_default():
    assert len(HELPS) > 300
    assert not {name: said for name, said in HELPS.items() if not said[:1].isupper() or NO_NOUN.match(said)}
    assert not {name: said for name, said in HELPS.items() if not said.endswith(".")}
    assert not {name: said for name, said in HELPS.items() if "[default" in said}


def test_the_help_of_a_layer_and_of_a_head_says_where_counting_begins():
    numbers = {name: said for name, said in HELPS.items() if re.search(r" (layer|head)$", name)}
    assert len(numbers) == 7  # of examples, explain, walk and align
    assert not {name: said for name, said in numbers.items() if "counted from 0" not in said}


def test_the_help_of_a_command_is_of_whole_sentences():
    texts = {name: command.help.partition("\b")[0].rstrip() for name, command in COMMANDS.items()}
    assert not {name: said for name, said in texts.items() if not said.endswith((".", "?"))}


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
