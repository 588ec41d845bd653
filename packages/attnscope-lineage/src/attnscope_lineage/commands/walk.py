"""`attnscope walk`: it prints the steps, or writes them to a file or a page."""

import os
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from attnscope.cli.output import new_console, print_written, progress_bar
from attnscope.report.language import language
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.commands import emit_to


def walk(
    arguments: dict[str, Any],
    *,
    markdown: Annotated[Path | None, "Write Markdown with LaTeX to this file; - prints it."] = None,
    page: Annotated[Path | None, "Write an HTML file with one step a screen."] = None,
    check: Annotated[
        Path | None,
        "Check the module of attention in this Python file: right, or the mistake by name. The file runs: use it only "
        "for code that you trust.",
    ] = None,
) -> None:
    """Run the command."""
    if check is not None:
        if arguments or markdown or page:
            raise AttnscopeError("--check stands alone: leave out the other options")
        raise SystemExit(_checked(check))
    texts = arguments.pop("texts", [])
    text = texts if len(texts) > 1 else next((Path(one) if os.path.isfile(one) else one for one in texts), None)  # noqa: PTH113 of any length
    import attnscope_lineage
    from attnscope_lineage.steps import markdown as as_markdown
    from attnscope_lineage.steps import terminal

    with progress_bar("walk") as show:
        steps = attnscope_lineage.walk(texts=text, progress=show, **arguments)
    if page is not None:
        from attnscope_lineage.page.walk import write

        print_written(write(steps, page))
    if markdown is None and page is None:
        console = new_console()
        console.print(terminal(steps, language(), width=console.width))
    elif markdown is not None:
        emit_to(None if str(markdown) == "-" else markdown, as_markdown(steps, language()), "--markdown")


def _checked(path: Path) -> int:
    """Print the verdict on the module of a file; 1 if it is wrong."""
    from attnscope_lineage.check import check, module_of

    verdict = check(*module_of(path))
    console = new_console()
    for line in verdict.sentences():
        console.print(Text(line), soft_wrap=True)  # not translated again: it has code and names
    return 0 if verdict.mistakes == () else 1
