"""`attnscope_lineage.lesson`."""

from pathlib import Path
from typing import Annotated

from attnscope.verbs import verb


@verb()
def lesson(
    name: Annotated[str | None, "Write this lesson, or all. Without a name, the command lists the lessons."] = None,
    *,
    page: Annotated[
        Path | None, "Write the page to this file, or for all lessons to this folder. By default lesson-NAME.html."
    ] = None,
    slides: Annotated[bool, "Open the page with one section a screen; the arrow keys turn."] = False,
    notebook: Annotated[
        Path | None,
        "Write a notebook to this file, or for all lessons to this folder, instead of the page. With `page`, both "
        "are written.",
    ] = None,
) -> list[Path]:
    """Write a lesson on attention: a page that computes, with exercises that name mistakes.

    A page is one file in the language of pages, loads nothing from the network, and computes every number in the
    browser. Its sliders, weights and outputs are tested against PyTorch. A notebook has the same prose and runs the
    same numbers in PyTorch.

    Returns
    -------
    list[Path]
        The files that were written.

    Raises
    ------
    AttnscopeError
        If there is no such lesson, or a file cannot be written.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> [written] = lesson("scores", page=Path(mkdtemp()) / "scores.html")
    >>> written.name
    'scores.html'
    """
    from attnscope.support.errors import AttnscopeError
    from attnscope_lineage.lessons import LESSONS
    from attnscope_lineage.lessons.write import notebook as write_notebook
    from attnscope_lineage.lessons.write import write

    names = f"all, or one of {', '.join(LESSONS)}"
    if name is None:
        raise AttnscopeError(f"name a lesson: {names}")
    if name != "all" and name not in LESSONS:
        raise AttnscopeError(f"found no lesson {name!r}; expected {names}")
    written: list[Path] = []
    for one in LESSONS if name == "all" else [name]:
        file = f"lesson-{one}"
        if page is not None or notebook is None:
            page_file = Path(f"{file}.html") if page is None else page / f"{file}.html" if name == "all" else page
            written.append(write(one, page_file, slides=slides))
        if notebook is not None:
            notebook_file = notebook / f"{file}.ipynb" if name == "all" else notebook
            written.append(write_notebook(one, notebook_file))
    return written
