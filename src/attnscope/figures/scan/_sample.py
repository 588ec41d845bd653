"""Reading the kept attention of a few windows: the maps of single heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.figures.reading import sides

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, eq=False)
class Map:
    """What is listed of one head in one window.

    Attributes
    ----------
    window, layer, head
        Which it is.
    count, rest
        For each query: how many weights are listed, and what they leave out.
    key, weight
        The listed ones, row after row.

    Examples
    --------
    >>> shown = Map(0, 2, 3, np.array([2, 1]), np.array([0.0, 0.5]), np.array([0, 1, 0]), np.array([0.75, 0.25, 0.5]))
    >>> shown.query.tolist(), shown.share  # half of the second row is not listed
    ([0, 0, 1], 0.75)
    """

    window: int
    layer: int
    head: int
    count: np.ndarray
    rest: np.ndarray
    key: np.ndarray
    weight: np.ndarray

    @property
    def query(self) -> np.ndarray:
        """The query of each listed weight."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @property
    def share(self) -> float:
        """How much of the map's weight is listed."""
        listed = float(self.weight.sum())
        return listed / max(listed + float(self.rest.sum()), 1e-9)


def maps(sample: xr.Dataset) -> Iterator[Map]:
    """Every map that a sample lists, with the rows that its queries have.

    Examples
    --------
    >>> import json
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope import scan
    >>> from attnscope.statistics import SAMPLE
    >>> from attnscope.store import RunFolder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = scan(limit=2, window=32, out=f"{place}/run", show=[(0, 3)])
    ...     with RunFolder(Path(place) / "run", json.loads(made.attrs["signature"])) as run:
    ...         first = next(maps(run.load(SAMPLE)))
    >>> first.window, first.count.shape  # a window, and a count for each of its queries
    (0, (32,))
    """
    count, rest = sample["count"].values, sample["rest"].values
    key, weight = sample["key"].values, sample["weight"].values
    last = np.cumsum(count.sum(1))
    names = (sample[name].values.tolist() for name in ("window_of", "layer_of", "head_of"))
    for at, (window, layer, head) in enumerate(zip(*names, strict=True)):
        rows = int(sample[f"{sides(sample, layer)[0]}tokens"].values[window])
        entries = slice(last[at] - count[at].sum(), last[at])
        yield Map(window, layer, head, count[at, :rows], rest[at, :rows], key[entries], weight[entries])


def first_rows(sample: xr.Dataset, heads: Sequence[tuple[int, int]], rows: int) -> xr.Dataset:
    """The first rows of some heads in the first window, as `attnscope.figures.weight_maps` takes them."""
    layers, columns = (sorted({head[i] for head in heads}) for i in (0, 1))
    by_head = {(shown.layer, shown.head): shown for shown in maps(sample) if shown.window == 0}
    rows = min(rows, sample.sizes["query"])  # of the longest window that is shown
    shape = (len(layers), len(columns), rows)
    chosen = [by_head[head] for head in heads]
    ranks = max(int(shown.count[:rows].max(initial=1)) for shown in chosen)
    key, weight = np.zeros((*shape, ranks), np.int64), np.zeros((*shape, ranks), np.float32)
    rest = np.zeros(shape, np.float32)
    for shown in chosen:
        at = layers.index(shown.layer), columns.index(shown.head)
        for row, (count, first) in enumerate(
            zip(shown.count[:rows], np.cumsum(shown.count) - shown.count, strict=False)
        ):
            key[*at, row, :count] = shown.key[first : first + count]
            weight[*at, row, :count] = shown.weight[first : first + count]
        rest[at][: len(shown.rest)] = shown.rest[:rows]
    dims = ("layer", "head", "query", "rank")
    of_window = [str(name) for name in sample.coords if "window" in sample[name].dims]
    texts = (
        sample.isel(window=0)[of_window]
        .isel(query=slice(rows))
        .drop_vars(["layer", "head", "layer_kind"], errors="ignore")
    )
    return texts.assign(key=(dims, key), weight=(dims, weight), rest=(dims[:3], rest)).assign_coords(
        layer=layers, head=columns, layer_kind=sample["layer_kind"].sel(layer=layers)
    )
