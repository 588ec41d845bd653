"""`attnscope.runs`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnscope.verbs import verb

if TYPE_CHECKING:
    from attnscope.results.open import Run


@verb()
def runs(
    *folders: Annotated[str | Path, "Folders to search; by default ``attnscope-runs`` and the current folder."],
) -> "list[Run]":
    """List the runs in folders: each folder itself, and those one level below.

    Returns
    -------
    list of Run
        The latest first. Folders that are not runs are skipped. A run with a damaged manifest is listed with its
        `damage`.

    Raises
    ------
    AttnscopeError
        If a folder does not exist.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = attnscope.scan(texts=["The tide is out."], out=Path(folder) / "tide")
    ...     [(run.path.name, run.command, run.model, run.progress) for run in attnscope.runs(folder)]
    [('tide', 'scan', 'small-mlm', 'all 1 window')]
    """
    from attnscope.results.open import runs as listed

    return listed(*folders)
