"""The commands of heads with a known role, and of heads between two words."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from attnscope.cli import options
from attnscope.cli.options import option, varied
from attnscope.cli.output import run
from attnscope.support.errors import AttnscopeError


def _caches(given: str | None) -> list[tuple[int, int]] | None:
    try:
        pairs = [one.split("+") for one in given.split(",")] if given else []
        return [(int(recent), int(sinks)) for recent, sinks in pairs] or None
    except ValueError as error:
        raise AttnscopeError(f"--kept is {given!r:.60}; expected caches such as 64+4,256+4") from error


@options.takes(
    *options.READING, "window", "limit", "seed", "batch_size", "repair", *options.WRITING,
    limit=32,
    batch_size=varied("batch_size", show_default="about 2,048 tokens' worth"),
    own={
        "kept": option(str | None, None, "Caches, as latest + first tokens, such as 64+4,256+4.", metavar="W+S,..."),
        "effects": option(
            Path | None, None, "Run folder of attnscope intervene, whose effects the card repeats.",
            parser=options.run_folder, metavar="RUN",
        ),
        "published": option(Path | None, None, "File of heads, such as a published list, to compare with the scores."),
        "needles": option(Path | None, None, "File of needles for retrieval heads, as for roles."),
        "answers": option(
            bool, False, "Loss of the answers to the needles without each head: a pass for each prompt and head.",
            "--answers",
        ),
        "limits": option(
            bool, False, "Loss if the keys of a key-value head are limited to each cache: a pass for each.", "--limits",
        ),
        "controls": option(
            str, "initialised,shuffled", "Untrained controls, with commas between: initialised, shuffled; or none.",
        ),
    },
    examples=(
        ("attnscope card gpt2 corpus.txt --json", "the card of every head, as JSON"),
        ("attnscope card gpt2 corpus.txt --effects runs/intervene", "with the effects of a run"),
        ("attnscope card gpt2 corpus.txt --published heads.tsv", "next to a published list"),
    ),
)  # fmt: skip
def card(arguments: dict[str, Any], output: options.Output) -> None:
    """Write the card of every head: roles, reach of its weight, effects, stability over texts."""
    import attnscope

    if arguments["effects"] is not None:
        arguments["effects"] = attnscope.open_run(arguments["effects"])
    if (kept := _caches(arguments.pop("kept"))) is not None:
        arguments["kept"] = kept
    run("card", output, **arguments)


@options.takes(
    *options.READING, "target", "window", "limit", "seed", *options.UNITS, "batch_size", "repair", *options.WRITING,
    batch_size=varied("batch_size", show_default="about 2048 tokens"),
    own={
        "query": option(str, inspect.Parameter.empty, "Word, or /pattern/, that attends.", "--from", metavar="WORD"),
        "key": option(str, inspect.Parameter.empty, "Word, or /pattern/, that it attends to.", "--to", metavar="WORD"),
        "words": option(
            str, "unicode", "Words of several tokens: unicode, space, or a file of spans.", metavar="RULE"
        ),
    },
    examples=(
        ('attnscope find bundled:pronoun "The cat left it, as it was shy." --from it --to cat', "one sentence"),
        ("attnscope find gpt2 corpus.txt --from it --to animal", "the sentences of a file that have both words"),
        ("attnscope find gpt2 corpus.txt --from /[Ii]t/ --to '/dogs?|cats?/'", "several words at once"),
    ),
)  # fmt: skip
def find(arguments: dict[str, Any], output: options.Output) -> None:
    """Find the heads that attend from one word to another, next to uniform attention and the other words."""
    arguments["words"] = options.rule_or_file(arguments["words"], options.WORDS)
    run("find", output, **arguments)
