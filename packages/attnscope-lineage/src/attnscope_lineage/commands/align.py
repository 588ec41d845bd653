"""`attnscope align`: it prints links, or writes a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.output import emit, finish, print_note, progress_bar
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.cli.options import Output

_DRAWN = 12  # sentence pairs, where there is a folder for them


def align(arguments: dict[str, Any], output: Output) -> None:
    """Run the command."""
    import attnscope_lineage
    from attnscope.results.reports import report_of
    from attnscope.store.folder import OwnedFolder
    from attnscope_lineage.alignment import MOST_WORDS, links_of

    if arguments["texts"] == arguments["targets"] == Path("-"):
        raise AttnscopeError("standard input (-) can be only one of the files")
    if "shown" in arguments and output.out is None:
        raise AttnscopeError("--shown draws sentence pairs into --out: give --out too, or leave --shown out")
    drawn = 0 if output.out is None else arguments.pop("shown", _DRAWN)
    with progress_bar("align") as bar:
        tree = attnscope_lineage.align(out=output.out, shown=drawn, progress=bar, **arguments)
    if "task" in tree.attrs:  # another process keeps and prints the results
        print_note(tree.attrs["task"])
        return
    if output.out is None and "gold" not in arguments and not output.as_json:
        emit("".join(f"{line}\n" for line in links_of(tree)))
        return
    page = "scores" in tree or "shown" in tree
    if output.out is not None and not page:
        why = f"no pair has between 1 and {MOST_WORDS} words on both sides" if drawn else "--shown is 0"
        print_note(f"no report.html: {why}")
    finish(report_of("align", tree), output, None if output.out is None else OwnedFolder(output.out, "align"), page)
