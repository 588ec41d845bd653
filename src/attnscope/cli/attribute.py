"""`attnscope attribute`: parse and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.cli import options
from attnscope.cli.options import argument, option
from attnscope.cli.output import run


@options.takes(
    *options.READING, "target", "window", "limit", "seed", *options.UNITS, "batch_size", "repair", *options.WRITING,
    limit=100,
    own={
        "text": argument(
            list[str] | None, None, "Texts in quotes, or files, folders and URLs as for scan.",
            parser=options.text_or_place,
        ),
        "token": option(
            str | None, None, "Token after each text, or at its masks.", show_default="the next token, everywhere"
        ),
        "against": option(str | None, None, "Token whose logit is subtracted."),
        "pairs": option(Path | None, None, "Pairs in place of texts, as for patch: answer against wrong."),
        "head": option(
            str | None, None, "Head whose scores are split in place of a logit, as layer.head, counted from 0.",
            metavar="L.H",
        ),
        "by_position": option(bool, False, "Parts of every prediction, not only their means.", "--by-position"),
    },
    examples=(
        ("attnscope attribute gpt2 corpus.txt", "the next token, everywhere in a file"),
        ('attnscope attribute gpt2 "The Eiffel Tower is in" --token " Paris" --against " Rome"', "one prompt"),
        ("attnscope attribute gpt2 corpus.txt --head 5.1", "why a head attends where it does"),
        ("attnscope attribute gpt2 --pairs pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
    ),
)  # fmt: skip
def attribute(arguments: dict[str, Any], output: options.Output) -> None:
    """Split the logit of a token into what heads, feed-forward layers and embeddings add; logit lens."""
    if arguments["head"] is not None:
        [arguments["head"]] = options.heads_of("--head", arguments["head"])
    run("attribute", output, **arguments)
