"""`attnscope score`: only one of its files is standard input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.output import progress_bar, show
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.cli.options import Output


def score(arguments: dict[str, Any], output: Output) -> None:
    """Run the command."""
    import attnscope_lineage
    from attnscope_lineage.scores import score_report

    files = [*arguments["hypotheses"], *arguments["targets"], arguments.get("texts")]
    if files.count(Path("-")) > 1:
        raise AttnscopeError("standard input (-) can be only one of the files")
    if "texts" in arguments and not {"by_length", "comet"} & arguments.keys():
        raise AttnscopeError("--text is for --comet, and for BLEU by its length: give --by-length too, as in 10,20,30")
    with progress_bar("score") as bar:
        result = attnscope_lineage.score(progress=bar, **arguments)
    show(score_report(result), output)
