"""Images: a vision encoder's patches in rows and columns, statistics of each image, labels of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.capture.encoders import load_vision_model
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import Loading
from attnscope.capture.processors import reader_of
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.measure.geometry import Grid, grid_of, jpeg
from attnscope.measure.labels import (
    ALIKE_ENTROPY,
    ALIKE_PLACES,
    LOCAL,
    MORE,
    SHARE,
    beyond_chance,
    beyond_shared,
    counted,
    label_variables,
    of_all_heads,
)
from attnscope.measure.passes import HostOffloader, Marks, WindowBatch, measure_call, stacked
from attnscope.measure.quantities import (
    EQUAL,
    OF_ANY_TOKENS,
    PATCH_STATISTICS,
    STATISTICS,
    choose,
    of_any_tokens,
    wording,
)
from attnscope.measure.ranking import offset_name, patch_shares
from attnscope.measure.reader import Read, Reader
from attnscope.measure.rows import evenly
from attnscope.options import ScanReading
from attnscope.read.windows import Window
from attnscope.report import registry
from attnscope.statistics.agreement import label_shares
from attnscope.store.run import Work
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.read.images import Images


@torch.no_grad()
def measure_patches(call: AttentionCall, grid: Grid, band: int) -> dict[str, Tensor]:
    r"""The distribution of the weights of the patches' rows, in patches."""
    rows, columns = grid.rows, grid.columns
    sizes, kind = call.query.shape[:2], torch.promote_types(call.query.dtype, torch.float32)
    along, across = (torch.arange(size, device=call.query.device, dtype=kind) for size in (rows, columns))
    aside = across - across[:, None]  # (query, key): columns to the right
    places = torch.zeros(*sizes, 2 * band + 1, columns, columns, dtype=kind, device=call.query.device)
    names = ("on_patches", "same_row", "same_column", "class_token", "registers", "distance", "down", "right")
    sums = {name: torch.zeros(sizes, dtype=torch.float64, device=call.query.device) for name in names}
    for row in range(rows):
        begin = grid.start + row * columns
        part = slice(begin, begin + columns)
        cut = {name: None if (of := getattr(call, name)) is None else of[..., part, :] for name in ("mask", "bias")}
        weights = attend_in_full(replace(call, query=call.query[..., part, :], **cut))[1]  # (batch, head, column, key)
        patches = weights[..., grid.patches].unflatten(-1, (rows, columns))  # (..., query, row, column)
        below = along - row
        by_row, by_column = patches.sum((-1, -3)), patches.sum(-2)
        sums["on_patches"] += by_row.sum(-1)
        sums["same_row"] += by_row[..., row]
        sums["same_column"] += by_column.diagonal(dim1=-2, dim2=-1).sum(-1)
        sums["distance"] += patches.flatten(2) @ (below[:, None] ** 2 + aside[:, None] ** 2).sqrt().flatten()
        sums["down"] += by_row @ below
        sums["right"] += by_column.flatten(2) @ aside.flatten()
        sums["registers"] += weights[..., grid.registers].sum((-1, -2))
        if grid.class_token is not None:
            sums["class_token"] += weights[..., grid.class_token].sum(-1)
        first, last = max(0, row - band), min(rows, row + band + 1)
        places[:, :, slice(first - row + band, last - row + band)] += patches[..., first:last, :].movedim(-2, 2)
    count, held = rows * columns, torch.where(sums["on_patches"] > 0, sums["on_patches"], torch.nan)
    return {
        "patch_profile": _profile(places.double(), rows, band),
        **{name: sums[name] / count for name in ("same_row", "same_column", "class_token", "registers")},
        "patch_distance": sums["distance"] / held,
        "row_offset_mean": sums["down"] / held,
        "column_offset_mean": sums["right"] / held,
    }


def _profile(places: Tensor, rows: int, band: int) -> Tensor:
    """Mean over the patches that have a neighbour, from sums over rows: ``(..., row offset, query, key)``."""
    columns = places.shape[-1]
    profile = places.new_full((*places.shape[:2], 2 * band + 1, 2 * band + 1), torch.nan)
    for index in range(2 * band + 1):
        pairs = rows - abs(index - band)
        for column in range(-min(band, columns - 1), min(band, columns - 1) + 1):
            if pairs > 0:
                total = places[:, :, index].diagonal(offset=column, dim1=-2, dim2=-1).sum(-1)
                profile[:, :, index, column + band] = total / (pairs * (columns - abs(column)))
    return profile


DEFAULT = tuple(name for name in (*PATCH_STATISTICS, *OF_ANY_TOKENS) if name != "learned_sink")
_TOKENS = 2048  # at a time
_BAND = 3  # patches
_LAYERS = 6  # that a note names
Pixels = tuple[str, "Tensor"]  # name of an image, and ``(1, channel, row, column)`` as the model reads it


class ImageReader(Reader):
    """Images of a vision encoder; consecutive images of one size form a batch."""

    called = "images"
    accepts = frozenset({"batch_size"})
    packages = ("pillow",)

    def __init__(self, model: Model, images: Images, settings: ScanReading) -> None:
        available = lambda: (*PATCH_STATISTICS, *of_any_tokens())  # noqa: E731
        names = choose(settings["statistics"], available, DEFAULT, " of images")
        loading = replace(Loading.of(settings), dry_run=False)  # patches are found with numbers
        self.vision = load_vision_model(
            model, processor=settings["tokenizer"], need_processor=not images.is_processed, loading=loading
        )
        super().__init__(self.vision.loaded, self.vision.model, images, settings, names)
        self.reader = reader_of(self.vision.processor)
        self.images = images
        self.count = min(len(images), settings["limit"] or len(images))
        self._grids: dict[tuple[int, ...], Grid | None] = {}  # by channels, rows and columns of pixels
        first = next(self.items())
        size = tuple(first[1].shape[1:])
        self._try(*first)
        self._grids[size] = None
        read = self.read([first], [0])
        self.verify(read)
        found = grid_of(self.model, first[1])
        grid = self._grids[size] = found if isinstance(found, Grid) else None
        if self.vision.tower:
            self.notes["tower"] = (
                f"Only the vision tower of {type(self.loaded.model).__name__} is measured ({self.vision.tower}, "
                f"{type(self.model).__name__})."
            )
        if isinstance(found, str):
            self.notes["patches"] = (
                f"No statistics of rows and columns of patches for {type(self.model).__name__}: {found}. Entropies "
                "and similar statistics are means over the rows of its layers (windows, pooled patches)."
            )
        self.names = _there(names, grid)
        self.band = _band(settings["band"], grid)
        self.has_maps = grid is not None and self._is_whole(read, grid)
        tokens = _TOKENS if grid is None else grid.tokens
        # with windows in a batch, images are not
        self.batch_size = (settings["batch_size"] or max(1, _TOKENS // tokens)) if self.has_maps else 1

    def signature_settings(self) -> dict[str, Any]:
        signed: dict[str, Any] = {"tower": self.vision.tower or None, "batch_size": self.batch_size, "band": self.band}
        signed |= {name: self.settings[name] for name in ("limit", "seed")} | {"statistics": list(self.names)}
        return signed | registry.signed("statistic", self.names)

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        return kinds_of_images(self.signature_settings())

    def items(self) -> Iterator[Pixels]:
        for image in islice(self.images, self.count):
            yield image.name, self.vision.pixels(image)

    def parts(self) -> Iterator[dict[int, Pixels]]:
        """Consecutive images of one size, at most a batch."""
        batch: dict[int, Pixels] = {}
        for number, item in enumerate(self.items()):
            if len(batch) == self.batch_size or (batch and item[1].shape != batch[number - 1][1].shape):
                yield batch
                batch = {}
            batch[number] = item
        if batch:
            yield batch

    def work(self) -> Work:
        """One pass over each batch, and the numbers of an image."""
        name, pixels = next(self.items())
        grid = self._grid(name, pixels)
        if grid is None:
            raise AttnscopeError(
                f"a dry run (--dry-run) counts patches, and those of {type(self.model).__name__} have no known rows "
                "and columns: scan a few images instead (--limit)"
            )
        sizes = {"row_offset": 2 * self.band + 1, "column_offset": 2 * self.band + 1}
        sizes["head"] = max(site.heads for site in self.sites)
        numbers = sum(prod(sizes.get(dim, 1) for dim in _dimensions(name)) for name in self.names)
        shapes = [(len(part), grid.tokens) for part in self.parts()]
        result, reads = 8 * numbers * len(self.sites), {"pixel_values": pixels}
        return Work(shapes, result=result, reads=reads, part=self.vision.tower, unit="image")

    def read(self, items: Sequence[Pixels], numbers: Sequence[int]) -> Read:  # noqa: ARG002
        grid = self._grid(*items[0])
        pixels = torch.cat([pixels for _, pixels in items])
        windows = [_window(name, grid) for name, _ in items]
        return Read(WindowBatch.with_arguments({"pixel_values": pixels}, windows), windows)

    def views(self, item: Pixels) -> list[dict[str, Any]]:
        """An image with its patches among the tokens, for a page."""
        grid = self._grid(*item)
        if grid is None:
            return []
        picture = jpeg(item[1][0], self.vision.processor)
        tokens = [*range(grid.tokens)[grid.patches]]
        view = {"name": "image", "rows": grid.rows, "columns": grid.columns, "tokens": tokens}
        return [view | {"source": f"data:image/jpeg;base64,{picture}" if picture else ""}]

    def views_of_first(self) -> list[dict[str, Any]]:
        return self.views(next(self.items()))

    def _try(self, name: str, pixels: Tensor) -> None:
        """Reject an image of a size that the model does not take."""
        advice = "Are the processor's size and the model's image_size the same?"
        with torch.no_grad(), explaining(f"{type(self.model).__name__} cannot read {name}", advice):
            self.model(pixel_values=pixels)

    def _is_whole(self, read: Read, grid: Grid) -> bool:
        """Whether all layers attend over all tokens of the image; a note names the others."""
        observer = PatchObserver(("entropy",), 0, grid, 1)
        self.run(read, observer)
        if observer.elsewhere:
            few = ", ".join(map(str, observer.elsewhere[:_LAYERS]))
            more = " and more" if len(observer.elsewhere) > _LAYERS else ""
            self.notes["patches"] = (
                f"Layers {few}{more} do not attend over all tokens of the image (windows, pooled patches): entropies "
                "are over their own rows there, and statistics of rows and columns are missing."
            )
        return not observer.elsewhere

    def _grid(self, name: str, pixels: Tensor) -> Grid | None:
        """Rows and columns of patches in images of this size, cached."""
        size = tuple(pixels.shape[1:])
        if size not in self._grids:
            self._try(name, pixels[:1])
            new = grid_of(self.model, pixels[:1]) if any(self._grids.values()) else None
            if isinstance(new, str):
                raise AttnscopeError(
                    f"{name}: found no rows and columns of patches ({new}), unlike in earlier images: leave it out"
                )
            self._grids[size] = new
        return self._grids[size]

    def measure_batch(self, items: Sequence[Pixels], numbers: Sequence[int]) -> xr.Dataset:
        read, grid = self.read(items, numbers), self._grid(*items[0])
        observer = PatchObserver(self.names, self.band, grid, len(items))
        self.run(read, observer, numbers)
        arrays = stacked(observer.measured.layers())
        offsets = np.arange(-self.band, self.band + 1)
        sizes = () if grid is None else (("tokens", grid.tokens), ("", grid.rows), ("", grid.columns))
        words = {"length": "tokens", "rows": "rows of patches", "columns": "columns of patches"}
        return xr.Dataset(
            {name: (_dimensions(name), array, wording(name).attributes) for name, array in arrays.items()}
            | {
                name: ("window", np.full(len(items), size), {"long_name": long_name, "units": units})
                for (name, long_name), (units, size) in zip(words.items(), sizes, strict=False)
            },
            coords={
                "window": np.array(numbers),
                "source": ("window", np.array([name for name, _ in items], dtype=object)),
                **layer_coordinates(self.sites),
                "head": np.arange(next(own.shape[2] for name, own in arrays.items() if not name.startswith(EQUAL))),
                **({"row_offset": offsets, "column_offset": offsets} if "patch_profile" in arrays else {}),
            },
        )

    def illustrated(self, sample: xr.Dataset, items: Sequence[Pixels], reads: Sequence[Read]) -> xr.Dataset:  # noqa: ARG002
        grids = [grid for item in items if (grid := self._grid(*item)) is not None]
        return sample.assign_coords(
            picture=("window", np.array([jpeg(pixels[0], self.vision.processor) for _, pixels in items], dtype=object)),
            grid=(("window", "of_grid"), np.array([[grid.start, grid.rows, grid.columns] for grid in grids])),
        )


def _there(names: Sequence[str], grid: Grid | None) -> list[str]:
    """The available statistics: those of patches need a grid, and the class token must exist."""
    lacks = set(PATCH_STATISTICS) if grid is None else set[str]()
    if grid is not None:
        lacks |= {"class_token"} if grid.class_token is None else set()
        lacks |= set() if grid.registers else {"registers"}
    available = [name for name in names if name not in lacks]
    if not available:
        raise AttnscopeError(f"this model has no {names[0]}: choose other statistics, such as entropy or max_weight")
    return available


def _band(band: int | None, grid: Grid | None) -> int:
    if grid is None:
        return 0
    largest = max(grid.rows, grid.columns) - 1
    if band is not None and band > largest:
        shape = f"{grid.rows} x {grid.columns} patches"
        raise AttnscopeError(f"band (--band) is {band}; in images of {shape} the largest offset is {largest}")
    return min(_BAND, largest) if band is None else band


def _window(name: str, grid: Grid | None) -> Window:
    """An image as a window of a page, without tokens if it has no grid."""
    if grid is None:
        return Window((), (), (), name, 0, ())
    special = tuple(token not in range(grid.tokens)[grid.patches] for token in range(grid.tokens))
    return Window((0,) * grid.tokens, special, ((0, 0),) * grid.tokens, name, 0, grid.names)


def _dimensions(name: str) -> tuple[str, ...]:
    of_head = () if name.startswith(EQUAL) else ("head",)
    along = ("row_offset", "column_offset") if name.removeprefix(EQUAL) == "patch_profile" else ()
    return ("window", "layer", *of_head, *along)


HAVE_EQUAL = ("patch_profile", "same_row", "same_column", "class_token", "registers", "patch_distance")


@dataclass(eq=False)
class PatchObserver:
    """Measures each attention call of a batch of images."""

    names: Sequence[str]  # names of statistics, and the largest offset in patches
    band: int
    grid: Grid | None  # grid of these images; None without known patches
    images: int  # their number
    # sites whose queries or keys are not the tokens of `grid`, such as windows and pooled layers
    elsewhere: list[int] = field(default_factory=list)
    measured: HostOffloader = field(default_factory=HostOffloader)  # ``(image, head, ...)`` of each site
    _equal: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        batch, heads = call.query.shape[:2]
        every = torch.ones(batch, call.query.shape[2], dtype=torch.bool, device=call.query.device)
        keys = torch.ones(batch, call.key.shape[2], dtype=torch.bool, device=call.query.device)
        of_rows = [name for name in self.names if name in STATISTICS]
        output, numbers = measure_call(call, of_rows or ["entropy"], 0, 0, Marks(every, keys, ~keys))
        numbers = {name: values for name, values in numbers.items() if name.removeprefix(EQUAL) in of_rows}
        if batch != self.images:  # windows of each image, one after the other
            numbers = {name: values.unflatten(0, (self.images, -1)).mean(1) for name, values in numbers.items()}
        wanted = [name for name in self.names if name in PATCH_STATISTICS]
        tokens = None if self.grid is None else self.grid.tokens
        if batch == self.images and tokens == call.query.shape[2] == call.key.shape[2]:
            numbers |= self._of_patches(call, wanted)
        else:
            self.elsewhere.append(site.index)
            width = 2 * self.band + 1
            missing: dict[str, Tensor] = {}
            for name in wanted:
                beyond = (width, width) if name == "patch_profile" else ()
                missing[name] = torch.full((self.images, heads, *beyond), torch.nan, dtype=torch.float64)
                if name in HAVE_EQUAL:
                    missing[f"{EQUAL}{name}"] = missing[name][:, :1]
            numbers |= missing
        self.measured.add(site.index, numbers)
        return output

    def _of_patches(self, call: AttentionCall, wanted: Sequence[str]) -> dict[str, Tensor]:
        if not wanted or self.grid is None:
            return {}
        measured = measure_patches(call, self.grid, self.band)
        plain = call.mask is None and call.bias is None
        equal = self._equal.get(call.query.shape[2]) if plain else None
        if equal is None:
            equal = measure_patches(evenly(call), self.grid, self.band)
        if plain:
            self._equal[call.query.shape[2]] = equal
        return {name: measured[name] for name in wanted} | {
            f"{EQUAL}{name}": equal[name].expand(self.images, *equal[name].shape[1:])
            for name in wanted
            if name in HAVE_EQUAL
        }


#: Statistics that labels are computed from.
NEEDED = ("entropy", "patch_profile", "same_row", "same_column")


@dataclass(frozen=True, eq=False)
class _Places:
    """Shares of a patch's weight, ``(head, candidate)``: one patch, several, all near; and the entropy."""

    single: np.ndarray
    lines: np.ndarray
    near: np.ndarray
    entropy: np.ndarray

    @property
    def candidates(self) -> np.ndarray:
        return np.concatenate([self.single, self.lines, self.near], axis=1)


def kinds_of_images(settings: Mapping[str, object]) -> Callable[[xr.Dataset], xr.Dataset] | None:
    """The function that labels heads in a scan with these settings; None if it cannot."""
    statistics = settings["statistics"]
    has_all = isinstance(statistics, Sequence) and all(name in statistics for name in NEEDED)
    return summarize_images if has_all else None


def summarize_images(results: xr.Dataset) -> xr.Dataset:
    """Label every head in every image."""
    names = _names(results)
    results = results.assign({f"{prefix}share": patch_shares(results, prefix) for prefix in ("", "equal_")})
    shape = tuple(results.sizes[dim] for dim in ("window", "layer", "head"))
    weights = results.rows * results.columns
    own = [name for name in map(str, results.data_vars) if {"window", "layer"} <= set(results[name].dims)]
    pooled = xr.Dataset({name: (results[name] * weights).sum("window", skipna=False) / weights.sum() for name in own})
    measured, equal = (_places(pooled, prefix).candidates for prefix in ("", "equal_"))
    allowed = beyond_chance(measured, equal, float(weights.sum()))
    codes = np.stack([_codes(results.isel(window=text, drop=True), names, allowed) for text in range(shape[0])])
    exists = np.isfinite(results.same_row.transpose("window", "layer", "head").values).reshape(shape[0], -1).all(0)
    used = np.unique(codes[:, exists])
    labels = np.searchsorted(used, codes[:, exists])
    shares = label_shares(labels, len(used))
    kinds = tuple(names[code] for code in used)
    return xr.Dataset(
        {
            "label": (("window", "layer", "head"), of_all_heads(labels, exists, shape[2], -1.0)),
            **label_variables(shares, exists, shape[2]),
        },
        coords={"cluster": np.array(kinds, dtype=object)},
        attrs={"labels": counted(kinds, shares.argmax(-1), None)},
    )


def _names(results: xr.Dataset) -> list[str]:
    """All possible labels, in the order of `_Places`, then ``uniform`` and ``mixed``."""
    offsets = results.row_offset.values.tolist()
    beside = [name.replace("_", " ") for name in ("class_token", "registers") if name in results]
    within = ["local" if reach == 1 else f"within {reach}" for reach in range(1, max(offsets) + 1)]
    single = [offset_name(row, column) for row in offsets for column in offsets]
    return [*single, *beside, "same row", "same column", *within, "uniform", "mixed"]


def _places(results: xr.Dataset, prefix: str = "") -> _Places:
    """The shares of every head, layer by layer; those of uniform attention are repeated for each head."""
    offsets = np.abs(results.row_offset.values)
    band = int(offsets.max(initial=0))
    heads = results.sizes["head"]

    def flat(values: xr.DataArray) -> np.ndarray:
        if prefix:
            return np.repeat(values.values, heads)
        return values.transpose("layer", "head").values.reshape(-1)

    shares = results[f"{prefix}share"].transpose("layer", ..., "row_offset", "column_offset")
    square = shares.values.reshape(-1, len(offsets), len(offsets))
    square = np.repeat(square, heads, 0) if prefix else square
    beside = [flat(results[prefix + name]) for name in ("class_token", "registers") if name in results]
    within = (offsets <= reach for reach in range(1, band + 1))
    near = [np.zeros((len(square), 0)), *(square[:, side][:, :, side].sum((1, 2)) for side in within)]
    return _Places(
        single=np.column_stack([square.reshape(len(square), -1), *beside]),
        lines=np.column_stack([flat(results[prefix + name]) for name in ("same_row", "same_column")]),
        near=np.column_stack(near),
        entropy=flat(results[f"{prefix}entropy"]),
    )


def _codes(results: xr.Dataset, names: list[str], allowed: np.ndarray) -> np.ndarray:
    """Index of the label of each head among `names`."""
    measured, equal = _places(results), _places(results, "equal_")
    enough = allowed & (measured.candidates >= MORE * equal.candidates)
    single, lines = measured.single.shape[1], measured.lines.shape[1]
    shared = slice(results.sizes["row_offset"] * results.sizes["column_offset"], single)
    enough[:, shared] &= beyond_shared(measured.single[:, shared], equal.single[:, shared])
    shares = np.where(enough[:, :single], measured.single, 0.0)
    moved = np.abs(measured.single - equal.single).sum(-1) / 2
    aside = np.abs(measured.lines - equal.lines).max(-1)
    alike = (np.maximum(moved, aside) <= ALIKE_PLACES) & (np.abs(measured.entropy - equal.entropy) <= ALIKE_ENTROPY)
    choices = [(shares.max(-1) >= SHARE, shares.argmax(-1)), (alike, names.index("uniform"))]
    within = range(single + lines, single + lines + measured.near.shape[1])
    order = (*within[:1], *range(single, single + lines), *within[1:])
    choices += [(enough[:, candidate] & (measured.candidates[:, candidate] >= LOCAL), candidate) for candidate in order]
    conditions, codes = zip(*choices, strict=True)
    return np.select(conditions, codes, names.index("mixed"))
