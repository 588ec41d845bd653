"""`attnscope circuits`: parse and run."""

from typing import Any

from attnscope.cli import options
from attnscope.cli.options import option
from attnscope.cli.output import run


@options.takes(
    "model", *options.LOADING, "seed", "repair", *options.WRITING,
    own={
        "band": option(int, 10, "Largest offset of the preferred offsets.", show_default=True),
        "tokens": option(int, 5, "Tokens and pairs of tokens listed for each head.", show_default=True),
    },
    examples=(
        ("attnscope circuits", "the bundled model"),
        ("attnscope circuits gpt2 --csv", "a model of the hub, one line for each head"),
    ),
)  # fmt: skip
def circuits(arguments: dict[str, Any], output: options.Output) -> None:
    """Read circuits off the weights alone: copying, preferred tokens and offsets, composition of heads."""
    run("circuits", output, **arguments)
