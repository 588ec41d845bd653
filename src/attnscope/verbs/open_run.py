"""`attnscope.open_run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb()
def open_run(
    path: Annotated[
        str | Path,
        "Open folder of a run of ``scan``, ``generate``, ``roles``, ``explain``, ``intervene``, ``patch``, "
        "``diff``, ``align``, ``compare`` or ``train``.",
    ],
    *,
    part: Annotated[
        str | None,
        'Open this part. For a scan with pools, ``"windows"`` opens the values stored for every window, and '
        '``"heads"`` the totals of each head (see `attnscope.measure.pools.over_documents`). ``"sample"`` opens '
        "the first windows on the page of a scan: weights, attention received by each key, and blocks of a long "
        'window; ``"examples"`` the windows where each head attends most strongly. A run with ``--no-report`` has '
        "neither.",
    ] = None,
) -> "xr.Dataset | xr.DataTree":
    """Open the results of a finished run, as the command's function returned them.

    Returns
    -------
    xarray.Dataset or xarray.DataTree
        The result of `attnscope.scan`, `attnscope.generate`, `attnscope.roles` and `attnscope.diff` (a Dataset),
        `attnscope.explain`, `attnscope.intervene` and `attnscope.patch` (a DataTree), or of a command of an installed
        package. No model is loaded, and nothing is recomputed.

    Raises
    ------
    AttnscopeError
        If the folder contains no run, or the run is unfinished or damaged.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = attnscope.scan(texts=["The tide is out."], out=Path(folder) / "run")
    ...     attnscope.open_run(Path(folder) / "run").identical(result)
    True
    """
    from attnscope.results.open import open_run as opened

    return opened(path, part=part)
