"""`attnscope find`: parse and run."""

import inspect
from typing import Any

from attnscope.cli import options
from attnscope.cli.options import argument, option, varied
from attnscope.cli.output import run


@options.takes(
    *options.READING, "target", "window", "limit", "seed", *options.UNITS, "batch_size", "repair", *options.WRITING,
    batch_size=varied("batch_size", show_default="about 2048 tokens"),
    own={
        "text": argument(
            list[str] | None, None, "Texts in quotes, or files, folders and URLs as for scan.",
            parser=options.text_or_place,
        ),
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
    model = options.text_or_place(arguments["model"])
    if isinstance(model, str) and " " in model:
        arguments |= {"model": options.BUNDLED, "texts": [model, *(arguments["texts"] or ())]}
    arguments["words"] = options.rule_or_file(arguments["words"], options.WORDS)
    run("find", output, **arguments)
