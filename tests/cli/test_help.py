"""The help of every parameter of every command names a thing, and ends."""

import inspect
import re

import typer

from attnscope.cli import app

COMMANDS = {"attnscope": typer.main.get_command(app)}
COMMANDS |= COMMANDS["attnscope"].commands
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


def test_the_help_of_a_parameter_opens_with_a_noun():
    assert len(HELPS) > 300
    assert not {name: said for name, said in HELPS.items() if not said[:1].isupper() or NO_NOUN.match(said)}


def test_the_help_of_a_parameter_ends_with_a_full_stop():
    assert not {name: said for name, said in HELPS.items() if not said.endswith(".")}


def test_typer_says_what_the_default_is():
    assert not {name: said for name, said in HELPS.items() if "[default" in said}


def test_the_help_of_a_layer_and_of_a_head_says_where_counting_begins():
    numbers = {name: said for name, said in HELPS.items() if re.search(r" (layer|head)$", name)}
    assert len(numbers) == 6  # of explain, walk and align
    assert not {name: said for name, said in numbers.items() if "counted from 0" not in said}


def test_the_help_of_a_command_is_of_whole_sentences():
    texts = {name: inspect.cleandoc(command.help).rstrip() for name, command in COMMANDS.items()}
    assert not {name: said for name, said in texts.items() if not said.endswith((".", "?"))}
