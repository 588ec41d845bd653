"""The statistics of windows that are cut already: where heads look, for commands that ask something else of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import xarray as xr

from attnscope.corpus import EncodedTexts
from attnscope.statistics._catalogue import choose
from attnscope.statistics._measurement import Measurement
from attnscope.statistics._pools import joined
from attnscope.statistics._summary import summarize

if TYPE_CHECKING:
    from attnscope.capture import LoadedModel
    from attnscope.corpus import Window


def statistics_of(loaded: LoadedModel, windows: Sequence[Window], *, band: int = 10) -> xr.Dataset:
    """What `scan` finds on these windows, kinds of heads included.

    Parameters
    ----------
    loaded
        In eval mode.
    windows
        One at least.
    band
        Largest offset of the band, less where windows are shorter.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of, windows_of
    >>> loaded = load_model("bundled", device="cpu")
    >>> windows = list(windows_of(texts_of(["The tide comes in twice a day."]), loaded.tokenizer, length=16))
    >>> dict(statistics_of(loaded, windows, band=3).profile.sizes)
    {'text': 1, 'layer': 3, 'head': 4, 'offset': 7}
    """
    longest = max(max(len(window), len(window.target or window)) for window in windows)
    job = Measurement(
        loaded,
        windows,
        choose(None),
        max(1, min(band, longest - 1)),
        longest - 1,
        max(1, 2048 // longest),
        None,
        EncodedTexts([list(window.ids) for window in windows]),
        None,
        show=False,
    )
    job.check()
    results = joined(list(job.batches()))
    return results.merge(
        summarize(results, clusters=None, seed=0), combine_attrs="no_conflicts"
    ).assign_attrs(job.notes)
