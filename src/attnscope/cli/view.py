"""`attnscope view`: it opens a page that the model answers, or writes one."""

from pathlib import Path
from typing import Annotated, Any

from attnscope.cli.output import emit, print_note, print_written, working
from attnscope.options import OUTPUT, Flag, Typed, path_of
from attnscope.support.errors import AttnscopeError


def view(
    arguments: dict[str, Any],
    *,
    page: Annotated[
        Path | None, OUTPUT, Typed(path_of, "FILE"), "Write a page that needs no model to this file, and end."
    ] = None,
    port: Annotated[int, OUTPUT, "Listen on this port of this machine. By default a free one."] = 0,
    browser: Annotated[bool, OUTPUT, Flag("browser"), "Open the address in the browser."] = True,
) -> None:
    """Run the command."""
    print_note("Loading the model ...")  # before the imports, which take seconds too
    from attnscope.report.language import translate
    from attnscope.results.view import answers
    from attnscope.verbs.view import view as of_verb

    live: Any = answers()
    if page is None and live is None:
        raise AttnscopeError(
            "a view that answers is in attnscope-live: in a copy of the repository, pip install "
            "packages/attnscope-live. A page needs no package: --page FILE"
        )
    if page is None:
        live.check_port(port)
    working()
    state = live.state_of(arguments.get("texts")) if live is not None else {}
    if state:
        arguments = arguments | {"texts": state.get("text") or None, "targets": state.get("target")}
    shown: Any = of_verb(**arguments)
    if page is not None:
        print_written(shown.save(page))
        return
    if shown.conversation is None:
        raise AttnscopeError(f"{shown.name} is not shown live: write a page with --page FILE")
    start = {"text": shown.text, "layer": shown.layer, "head": shown.head, "token": shown.token} | state
    answers().serve(shown.conversation, start, lambda line: emit(translate(line) + "\n"), port=port, opens=browser)
