"""`attnscope compare`: its folder has a page."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.output import finish, progress_bar

if TYPE_CHECKING:
    from attnscope.cli.options import Output


def compare(arguments: dict[str, Any], output: Output) -> None:
    """Run the command."""
    import attnscope_lineage
    from attnscope.results.reports import report_of
    from attnscope.store.files import PAGE
    from attnscope.store.folder import OwnedFolder

    out = output.out or Path(inspect.signature(attnscope_lineage.compare).parameters["out"].default)
    with progress_bar("compare", lines=True) as bar:
        tree = attnscope_lineage.compare(out=out, progress=bar, **arguments)
    folder = OwnedFolder(out, "compare").look()
    results = sorted(one.sha256 for name, one in folder.files.items() if "/" not in name and name != PAGE)
    finish(report_of("compare", tree), output, folder, key=results)
