"""The end of a scan whose texts are all measured, without its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnscope.measure.images import kinds_of_images
from attnscope.measure.stored import load_scan
from attnscope.measure.summary import kinds_of
from attnscope.measure.writing import end

if TYPE_CHECKING:
    from attnscope.store.runs import RunFolder

_KINDS: dict[str, Callable[[Mapping[str, Any]], Callable[[xr.Dataset], xr.Dataset] | None]] = {
    "images": kinds_of_images
}


def finish_scan(run: RunFolder, attributes: dict[str, str]) -> xr.Dataset:
    """Name the kinds of heads, and mark the run as complete; the attention that its page shows needs the model."""
    if not run.complete:
        kinds = _KINDS.get(attributes.get("reads", ""), kinds_of)(run.signature.settings or {})
        end(run, kinds, attributes)
    return load_scan(run)
