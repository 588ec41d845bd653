"""The commands that a run names next repeat its words, and work as they stand."""

import re
import shlex
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import xarray as xr

from attnscope.catalogue import VERBS, verbs
from attnscope.cli import app
from attnscope.cli.following import next_commands
from tests.cli.command import attnscope

COMMANDS = typer.main.get_command(app).commands
TYPED: dict[str, Any] = {
    "model": "my models/gpt2",
    "text": ["It's 2 m.", "a $file.txt"],
    "window": 64,
    "limit": 3,
    "by_line": True,
    "field": "body",
    "dtype": "bfloat16",
    "batch_size": 4,
    "seed": 7,
    "kept": "64+4",
    "answer": " is",
    "heads": "0.1",
}


def report_of(verb, **attributes) -> Any:
    result = SimpleNamespace(attrs=attributes, data_vars=())
    heads, settings = SimpleNamespace(leading=[(0, 1), (2, 3)]), {"groups": attributes.get("groups")}
    return SimpleNamespace(command=verb, result=result, rows=[], finding=heads, signature={"settings": settings})


def card_of(*roles):
    report = report_of("card")
    report.result = xr.Dataset(coords={"role": [*roles]})
    return report


def parsed(command):
    """The name of a command as it is typed, and the values of its parameters that are not the defaults."""
    program, name, *words = shlex.split(command)
    assert program == "attnscope"
    context = COMMANDS[name].make_context(name, words)
    return name, {key: value for key, value in context.params.items() if value not in (None, False, [], ())}


@pytest.mark.parametrize("verb", sorted(name for name, one in verbs().items() if one.after))
def test_words_are_repeated_as_they_were_typed(verb):
    taken = {one.name for one in COMMANDS[verb].params}
    typed = {name: value for name, value in TYPED.items() if name in taken}
    typed |= {"pairs": ["agreement", "more.jsonl"]} if "pairs" in taken and "text" not in taken else {}
    typed |= {"query": "it"} if verb == "relations" else {}
    named = [*next_commands(report_of(verb), typed)]
    assert named
    for _, command in named:
        name, values = parsed(command)
        following = {one.name for one in COMMANDS[name].params}
        for parameter in ("model", "text", "pairs", "window", "by_line", "field", "dtype", "seed", "answer"):
            if parameter in typed.keys() & following:
                assert values[parameter] == typed[parameter], (command, parameter)
        assert "batch_size" not in values
        assert values.get("limit", 8) == 8  # fewer cannot be tested
        if "heads" in values and name != verb:
            assert values["heads"] in {"0.1", "0.1,2.3"}


@pytest.mark.parametrize(
    ("report", "typed", "expected"),
    [
        (report_of("scan", reads="images"), {"text": ["pictures"]}, []),  # no other verb reads them
        (report_of("scan", groups="roles"), {"text": ["chats.jsonl"]}, []),
        (report_of("generate", groups="roles"), {"text": ["chats.jsonl"]}, ["scan"]),
        (report_of("scan"), {"model": "The tide comes in."}, ["explain", "intervene"]),
        (report_of("generate"), {"model": "gpt2", "prompt": ["The tide is"]}, ["scan"]),
        (report_of("generate"), {"model": "gpt2", "prompt": ["The"]}, []),  # would be the name of a file
        (report_of("attribute"), {"model": "gpt2", "text": ["The tide is"]}, ["intervene"]),
        (report_of("attribute"), {"model": "gpt2", "pairs": ["agreement"]}, ["patch"]),
        (report_of("edges", unit="logits"), {"model": "gpt2", "pairs": ["pairs.jsonl"]}, ["attribute"]),
        (report_of("edges", unit="nats"), {"model": "gpt2", "pairs": ["pairs.jsonl"]}, []),  # answers of several tokens
        (report_of("edges", unit="logits", answers="several"), {"model": "gpt2", "pairs": ["pairs.jsonl"]}, []),
        (report_of("card"), {"check": True}, []),
        (card_of("retrieval", "kept_64_4"), {"model": "gpt2"}, ["card"]),
        (card_of("retrieval"), {"model": "bert-base-uncased"}, []),  # no head that a cache could limit
        (report_of("relations"), {"text": ["treebank.conllu"]}, []),
        (report_of("scan"), {}, []),  # not from the command line
    ],
)
def test_only_what_can_read_the_same_is_named(report, typed, expected):
    assert [parsed(command)[0] for _, command in next_commands(report, typed)] == expected


def test_commands_of_packages_that_are_not_installed_are_not_named(monkeypatch):
    monkeypatch.setattr("attnscope.catalogue.verbs", lambda: VERBS)  # those of the core
    monkeypatch.setattr("attnscope.cli.following.verbs", lambda: VERBS)
    typed = {"model": "gpt2", "pairs": ["pairs.jsonl"]}
    assert not [*next_commands(report_of("patch", unit="logits"), typed)]
    for verb in (name for name, one in VERBS.items() if one.after):
        for _, command in next_commands(report_of(verb), {"model": "gpt2", "text": ["notes.txt"], "pairs": ["pairs"]}):
            assert parsed(command)[0] in VERBS


def next_of(printed):
    return re.findall(r"^Next \([^)]+\): (.+)$", printed, re.MULTILINE)


def test_the_commands_of_a_short_text_run(tmp_path):
    text = "It's the tide that comes in twice a day, and the boats in the harbour rise with it."
    scanned = attnscope("scan", "bundled", text, "--figures", "none", cwd=tmp_path)
    explain, intervene = next_of(scanned.stdout)
    for command in (explain, intervene):
        done = attnscope(*shlex.split(command)[1:], "--figures", "none", cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    assert next_of(done.stdout)[0].startswith("attnscope examples bundled")


def test_the_command_after_roles_ablates_these_heads(tmp_path):
    found = attnscope("roles", "--limit", "8", "--controls", "none", "--figures", "none", cwd=tmp_path)
    (command,) = next_of(found.stdout)
    assert "--heads 0." in command
    done = attnscope(*shlex.split(command)[1:], "--no-report", "--ablations", "zero", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_after_edges_reads_their_pairs(tmp_path):
    line = '{"clean": "The dog", "corrupted": "The dogs", "answer": " is", "wrong": " are"}'
    (tmp_path / "pairs.jsonl").write_text(line + "\n")
    found = attnscope("edges", "bundled:tasks", "pairs.jsonl", "--size", "1", "--figures", "none", cwd=tmp_path)
    (command,) = next_of(found.stdout)
    assert command == "attnscope attribute bundled:tasks --pairs pairs.jsonl"
    done = attnscope(*shlex.split(command)[1:], "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
