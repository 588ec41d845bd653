"""`attnscope.expect`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnscope.options import Dataset, Natural
from attnscope.verbs import verb

if TYPE_CHECKING:
    from attnscope.testing.expect import Expectation


@verb()
def expect(
    run: Annotated[str | Path | Dataset, "Check a finished scan: its folder, or the result of `attnscope.scan`."],
    *,
    layer: Annotated[Natural, "Check a head of this layer, counted from 0."],
    head: Annotated[Natural, "Check this head, counted from 0."],
) -> "Expectation":
    """Check a head in a test suite; the 95% interval decides, not the mean.

    Returns
    -------
    Expectation
        The head, whose methods return a `Measured` number.

    Raises
    ------
    AttnscopeError
        If the run is not a scan or does not have the head.

    Examples
    --------
    >>> import attnscope
    >>> run = attnscope.scan(limit=20)
    >>> assert attnscope.expect(run, layer=0, head=3).attends_to(-1) > 0.9
    >>> assert attnscope.expect(run, layer=0, head=3).label == "previous"
    >>> assert attnscope.expect(run, layer=2, head=2).statistic("max_weight") < 0.2
    >>> attnscope.expect(run, layer=0, head=3).attends_to(-1)
    <mean weight of head 0.3 at offset -1: 0.982, 95% interval 0.982 to 0.983 over 20 windows>
    """
    import xarray as xr

    from attnscope.results.open import open_run
    from attnscope.support.errors import AttnscopeError
    from attnscope.testing.expect import Expectation

    scan = run if isinstance(run, xr.Dataset) else open_run(run, part=None)
    if not isinstance(scan, xr.Dataset) or not {"window", "layer", "head"} <= set(scan.dims):
        raise AttnscopeError("found no scan; expected a result of attnscope.scan, or its run folder")
    for name, number in (("layer", layer), ("head", head)):
        if number not in scan[name].values:
            raise AttnscopeError(f"there is no {name} {number}: the scan has {', '.join(map(str, scan[name].values))}")
    return Expectation(scan, layer, head)
