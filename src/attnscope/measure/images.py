"""A scan of images: a folder of them through a vision encoder, statistics per image, kinds, signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from attnscope.capture.encoders import VisionModel, load_vision_model
from attnscope.capture.forward import forward
from attnscope.capture.notes import capture_notes, layer_coordinates
from attnscope.capture.signature import signature_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.measure.grid import Grid, equal_call, grid_of, jpeg, measure_patches, offset_name, patch_shares
from attnscope.measure.independence import effective_labels, label_shares
from attnscope.measure.maps import share_room
from attnscope.measure.measurement import UNIT
from attnscope.measure.observer import (
    ALIKE_ENTROPY,
    ALIKE_PLACES,
    LOCAL,
    MORE,
    SHARE,
    beyond_chance,
    beyond_shared,
)
from attnscope.measure.passes import Marks, measure_call, stacked
from attnscope.measure.pools import HostOffloader
from attnscope.measure.quantities import EQUAL, OF_ANY_TOKENS, PATCH_STATISTICS, STATISTICS, choose, wording
from attnscope.measure.questions import BY_DEFAULT, ScanSettings
from attnscope.measure.sample import (
    WEIGHTS,
    WINDOWS,
    MapObserver,
    reject_absent,
    sample_dataset,
    shown_heads,
    tile_size,
)
from attnscope.measure.summary import counted
from attnscope.measure.writing import measured
from attnscope.read.images import Image, Images
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.progress import Progress, no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Observer, Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.measure.questions import ScanSettings
    from attnscope.read.images import Images

KNOWN = (*PATCH_STATISTICS, *OF_ANY_TOKENS)
DEFAULT = tuple(name for name in KNOWN if name != "learned_sink")


def scan_images(
    model: Model,
    images: Images,
    asked: ScanSettings = BY_DEFAULT,
) -> xr.Dataset:
    """Measure where every attention head of a vision encoder looks; `attnscope.scan` calls this for images."""
    names = choose(asked.statistics, KNOWN, DEFAULT, " of images")
    vision = load_vision_model(
        model, processor=asked.processor, need_processor=not images.is_processed, loading=asked.loading
    )
    job = ImageMeasurement(vision, images, names, asked)
    reject_absent(asked.show, len(job.sites), max(site.heads for site in job.sites))
    settings = {
        "tower": vision.tower or None,
        "limit": asked.limit,
        "batch_size": job.batch_size,
        "statistics": list(job.names),
        "band": job.band,
        "seed": asked.seed,
    }
    processing = vision.processing()
    reader = None if processing is None else {"sha256": processing}
    signature = signature_of(
        "scan", vision.loaded, images, None, settings, reader=reader, packages=("pillow",)
    )
    attributes = {"model": vision.loaded.name, "reads": "images"}
    return measured(job, asked, signature, kinds_of_images(settings), attributes)


_TOKENS = 2048  # at a time
_BAND = 3  # patches
_LAYERS = 6  # that are named one by one


class ImageMeasurement:
    """The forward passes of one scan of images."""

    unit = UNIT

    def __init__(
        self,
        vision: VisionModel,
        images: Images,
        names: Sequence[str],
        asked: ScanSettings,
    ) -> None:
        self.vision, self.images = vision, images
        self.count = min(len(images), asked.limit or len(images))
        self.progress = asked.progress or no_progress
        self.notes: dict[str, str] = {}
        self.seen = 0
        self._grids: dict[tuple[int, ...], Grid | None] = {}  # by channels, rows and columns of pixels
        first = next(iter(images))
        pixels = vision.pixels(first)
        self._check(first, pixels)
        first_grid = grid_of(vision.model, pixels)
        grid = self._grids[tuple(pixels.shape[1:])] = first_grid if isinstance(first_grid, Grid) else None
        if not isinstance(first_grid, Grid):
            self._note_masked_offsets(first_grid)
        self.names = _there(names, grid)
        self.band = _band(asked.band, grid)
        self.is_whole = grid is not None and self._is_whole(first, pixels)
        tokens = _TOKENS if grid is None else grid.tokens
        # where windows lie side by side, images do not
        self.batch_size = (asked.batch_size or max(1, _TOKENS // tokens)) if self.is_whole else 1

    def _try(self, image: Image, pixels: Tensor) -> None:
        """Refuse an image of a size that the model does not take."""
        model = self.vision.model
        advice = "Are the processor's size and the model's image_size the same?"
        with torch.no_grad(), explaining(f"{type(model).__name__} cannot read {image.name}", advice):
            model(pixel_values=pixels)

    def _check(self, first: Image, pixels: Tensor) -> None:
        """Refuse a model that cannot be measured, on the first image; say what is not as expected."""
        model = self.vision.model
        name = type(model).__name__
        self._try(first, pixels)
        self.sites, _ = verify(model, {"pixel_values": pixels}, text=first.name, weights_suffice=True)
        self.notes |= capture_notes(model)
        if self.vision.tower:
            self.notes["tower"] = (
                f"{type(self.vision.loaded.model).__name__} reads more than images: what is measured is its vision "
                f"tower ({self.vision.tower}, {name})."
            )

    def _is_whole(self, first: Image, pixels: Tensor) -> bool:
        """Whether all layers attend over all tokens of the image; those that do not are named."""
        observer = PatchObserver(("entropy",), 0, self._grid(first, pixels), 1)
        self._run([first], pixels, observer)
        if observer.elsewhere:
            shown = ", ".join(map(str, observer.elsewhere[:_LAYERS]))
            more = " and more" if len(observer.elsewhere) > _LAYERS else ""
            self.notes["patches"] = (
                f"Layers {shown}{more} do not attend from each token of the image to each (windows, pooled patches): "
                "entropies and the like are of their own rows there, and no rows and columns of patches are measured."
            )
        return not observer.elsewhere

    def _note_masked_offsets(self, reason: str) -> None:
        self.notes["patches"] = (
            f"No rows and columns of patches are measured of {type(self.vision.model).__name__}: {reason}. Entropies "
            "and the like are of the rows that its layers have (windows, pooled patches), which count alike."
        )

    def _grid(self, image: Image, pixels: Tensor) -> Grid | None:
        """Rows and columns of images of this size; of another one they are found anew."""
        size = tuple(pixels.shape[1:])
        if size not in self._grids:
            self._try(image, pixels[:1])
            known = any(self._grids.values())
            new = grid_of(self.vision.model, pixels[:1]) if known else None
            if isinstance(new, str):
                raise AttnscopeError(
                    f"{image.name}: no rows and columns of patches are found ({new}), and those of the images before "
                    "were: leave it out"
                )
            self._grids[size] = new
        return self._grids[size]

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Measure batch after batch, but those that are done."""
        for batch, pixels in self._side_by_side():
            texts = range(self.seen, self.seen + len(batch))
            self.seen += len(batch)
            if not done(texts):
                yield self._measure(batch, pixels, texts.start)
            self.progress(Progress("scan", self.seen / self.count, {"images": self.seen}))

    def _side_by_side(self) -> Iterator[tuple[list[Image], Tensor]]:
        """Images of one size that follow each other, at most as many as a batch takes."""
        batch: list[Image] = []
        pixels: list[Tensor] = []
        for image in islice(self.images, self.count):
            read = self.vision.pixels(image)
            if batch and (len(batch) == self.batch_size or read.shape != pixels[0].shape):
                yield batch, torch.cat(pixels)
                batch, pixels = [], []
            batch.append(image)
            pixels.append(read)
        if batch:
            yield batch, torch.cat(pixels)

    @torch.no_grad()
    def _run(self, batch: Sequence[Image], pixels: Tensor, observer: Observer) -> None:
        with watching(self.vision.model, observer, weights_suffice=True):
            forward(self.vision.model, {"pixel_values": pixels}, lambda number: batch[number].name)

    def watch_first(self, observer: Observer) -> Window:
        """Run the first image with an observer; it is returned as a page shows it, without tokens if it has no grid."""
        image = next(iter(self.images))
        pixels = self.vision.pixels(image)
        self._run([image], pixels, observer)
        grid = self._grid(image, pixels)
        return Window((), (), (), image.name, 0, ()) if grid is None else _window(image.name, grid)

    def _measure(self, batch: Sequence[Image], pixels: Tensor, first: int) -> xr.Dataset:
        grid = self._grid(batch[0], pixels)
        observer = PatchObserver(self.names, self.band, grid, len(batch))
        self._run(batch, pixels, observer)
        arrays = stacked([*observer.measured.values()])
        offsets = np.arange(-self.band, self.band + 1)
        profiled = "patch_profile" in arrays
        words = {
            "length": ("tokens", "tokens"),
            "rows": ("rows of patches", ""),
            "columns": ("columns of patches", ""),
        }
        sizes = () if grid is None else (grid.tokens, grid.rows, grid.columns)
        return xr.Dataset(
            {name: (_dimensions(name), array, wording(name).attributes) for name, array in arrays.items()}
            | {
                name: ("text", np.full(len(batch), size), {"long_name": long_name, "units": units})
                for (name, (long_name, units)), size in zip(words.items(), sizes, strict=False)
            },
            coords={
                "text": np.arange(first, first + len(batch)),
                "source": ("text", np.array([image.name for image in batch], dtype=object)),
                **layer_coordinates(self.sites),
                "head": np.arange(
                    next(values.shape[2] for name, values in arrays.items() if not name.startswith(EQUAL))
                ),
                **({"row_offset": offsets, "column_offset": offsets} if profiled else {}),
            },
        )

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first images; None where tokens are not patches of one grid."""
        if not self.is_whole:
            return None
        shown = list(islice(self.images, min(WINDOWS, self.count)))
        read = [self.vision.pixels(image) for image in shown]
        grids_of = [self._grid(image, pixels) for image, pixels in zip(shown, read, strict=True)]
        grids = [grid for grid in grids_of if grid is not None]
        longest, heads = max(grid.tokens for grid in grids), results.sizes["head"]
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * heads - len(listed[0])
        observed: list[MapObserver] = []
        for image, pixels, of_image in zip(shown, read, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            observer = MapObserver(of_image, WEIGHTS, tile, lambda: None)
            self._run([image], pixels, observer)
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        windows = [_window(image.name, grid) for image, grid in zip(shown, grids, strict=True)]
        sample = sample_dataset(observed, windows, [site.kind for site in self.sites], heads, asked)
        pictures = [jpeg(pixels[0], self.vision.processor) for pixels in read]
        return sample.assign_coords(
            picture=("window", np.array(pictures, dtype=object)),
            grid=(("window", "of_grid"), np.array([[grid.start, grid.rows, grid.columns] for grid in grids])),
        )


def _there(names: Sequence[str], grid: Grid | None) -> list[str]:
    """The statistics that a model has: those of patches need a grid, and the class token needs one."""
    lacks = set(PATCH_STATISTICS) if grid is None else set[str]()
    if grid is not None:
        lacks |= {"class_token"} if grid.class_token is None else set()
        lacks |= set() if grid.registers else {"registers"}
    there = [name for name in names if name not in lacks]
    if not there:
        raise AttnscopeError(
            f"this model has no {names[0]}: ask for other statistics, such as entropy or max_weight"
        )
    return there


def _band(asked: int | None, grid: Grid | None) -> int:
    if grid is None:
        return 0
    largest = max(grid.rows, grid.columns) - 1
    if asked is not None and asked > largest:
        shape = f"{grid.rows} x {grid.columns} patches"
        raise AttnscopeError(
            f"band (--band) is {asked}; in images of {shape} the largest offset is {largest}"
        )
    return min(_BAND, largest) if asked is None else asked


def _window(name: str, grid: Grid) -> Window:
    """An image as the windows of a page are."""
    special = tuple(token not in range(grid.tokens)[grid.patches] for token in range(grid.tokens))
    return Window((0,) * grid.tokens, special, ((0, 0),) * grid.tokens, name, 0, grid.names)


def _dimensions(name: str) -> tuple[str, ...]:
    of_head = () if name.startswith(EQUAL) else ("head",)
    along = ("row_offset", "column_offset") if name.removeprefix(EQUAL) == "patch_profile" else ()
    return ("text", "layer", *of_head, *along)


HAVE_EQUAL = ("patch_profile", "same_row", "same_column", "class_token", "registers", "patch_distance")


@dataclass(eq=False)
class PatchObserver:
    """Measures each attention call of images side by side."""

    names: Sequence[str]  # which statistics, and the largest offset in patches
    band: int  # which statistics, and the largest offset in patches
    grid: Grid | None  # grid of these images; None where patches are not known
    images: int  # how many there are
    # sites whose queries or keys are not the tokens of `grid`, such as windows and pooled layers
    elsewhere: list[int] = field(default_factory=list)
    measured: HostOffloader = field(default_factory=HostOffloader)  # by site index, ``(image, head, ...)``
    _equal: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        batch, heads = call.query.shape[:2]
        every = torch.ones(batch, call.query.shape[2], dtype=torch.bool, device=call.query.device)
        keys = torch.ones(batch, call.key.shape[2], dtype=torch.bool, device=call.query.device)
        of_rows = [name for name in self.names if name in STATISTICS]
        output, numbers = measure_call(call, of_rows or ["entropy"], 0, 0, Marks(every, keys, ~keys))
        numbers = {name: values for name, values in numbers.items() if name.removeprefix(EQUAL) in of_rows}
        if batch != self.images:  # windows of each image, one after the other
            numbers = {
                name: values.unflatten(0, (self.images, -1)).mean(1) for name, values in numbers.items()
            }
        wanted = [name for name in self.names if name in PATCH_STATISTICS]
        if self._is_on_grid(call):
            numbers |= self._of_patches(call, wanted)
        else:
            self.elsewhere.append(site.index)
            numbers |= self._missing(wanted, heads)
        self.measured[site.index] = numbers
        return output

    def _is_on_grid(self, call: AttentionCall) -> bool:
        tokens = None if self.grid is None else self.grid.tokens
        return call.query.shape[0] == self.images and tokens == call.query.shape[2] == call.key.shape[2]

    def _of_patches(self, call: AttentionCall, wanted: Sequence[str]) -> dict[str, Tensor]:
        if not wanted or self.grid is None:
            return {}
        measured = measure_patches(call, self.grid, self.band)
        plain = call.mask is None and call.bias is None
        equal = self._equal.get(call.query.shape[2]) if plain else None
        if equal is None:
            equal = measure_patches(equal_call(call), self.grid, self.band)
        if plain:
            self._equal[call.query.shape[2]] = equal
        return {name: measured[name] for name in wanted} | {
            f"{EQUAL}{name}": equal[name].expand(self.images, *equal[name].shape[1:])
            for name in wanted
            if name in HAVE_EQUAL
        }

    def _missing(self, wanted: Sequence[str], heads: int) -> dict[str, Tensor]:
        """NaN for what a layer without rows and columns does not have."""
        width = 2 * self.band + 1
        missing: dict[str, Tensor] = {}
        for name in wanted:
            beyond = (width, width) if name == "patch_profile" else ()
            missing[name] = torch.full((self.images, heads, *beyond), torch.nan, dtype=torch.float64)
            if name in HAVE_EQUAL:
                missing[f"{EQUAL}{name}"] = missing[name][:, :1]
        return missing


#: Statistics from which kinds of heads are found.
NEEDED = ("entropy", "patch_profile", "same_row", "same_column")


@dataclass(frozen=True, eq=False)
class _Places:
    """Shares of a patch's weight, ``(head, place)``: one place, several, all near; and the entropy."""

    single: np.ndarray
    lines: np.ndarray
    near: np.ndarray
    entropy: np.ndarray

    @property
    def candidates(self) -> np.ndarray:
        return np.concatenate([self.single, self.lines, self.near], axis=1)


def kinds_of_images(settings: Mapping[str, object]) -> Callable[[xr.Dataset], xr.Dataset] | None:
    """What finds the kinds of heads in the results of a scan with these settings; None where it cannot."""
    statistics = settings["statistics"]
    has_all = isinstance(statistics, Sequence) and all(name in statistics for name in NEEDED)
    return summarize_images if has_all else None


def summarize_images(results: xr.Dataset) -> xr.Dataset:
    """Name the kind of every head in every image."""
    names = _names(results)
    results = results.assign({f"{prefix}share": patch_shares(results, prefix) for prefix in ("", "equal_")})
    shape = tuple(results.sizes[dim] for dim in ("text", "layer", "head"))
    weights = results.rows * results.columns
    pooled = xr.Dataset(
        {
            name: (results[name] * weights).sum("text", skipna=False) / weights.sum()
            for name in map(str, results.data_vars)
            if {"text", "layer"} <= set(results[name].dims)
        }
    )
    measured, equal = (_places(pooled, prefix).candidates for prefix in ("", "equal_"))
    allowed = beyond_chance(measured, equal, float(weights.sum()))
    codes = np.stack([_codes(results.isel(text=text, drop=True), names, allowed) for text in range(shape[0])])
    exists = (
        np.isfinite(results.same_row.transpose("text", "layer", "head").values).reshape(shape[0], -1).all(0)
    )
    used = np.unique(codes[:, exists])
    labels = np.searchsorted(used, codes[:, exists])
    shares = label_shares(labels, len(used))
    kinds = tuple(names[code] for code in used)

    def by_head(values: np.ndarray, missing: float = np.nan) -> np.ndarray:
        whole = np.full((*values.shape[:-1], exists.size), missing, dtype=values.dtype)
        whole[..., exists] = values
        return whole.reshape(*values.shape[:-1], *shape[1:])

    dims = ("layer", "head")
    return xr.Dataset(
        {
            "label": (("text", *dims), by_head(labels, -1.0)),
            "label_share": ((*dims, "cluster"), np.moveaxis(by_head(shares.T), 0, -1)),
            "majority_share": (dims, by_head(shares.max(-1))),
            "effective_labels": (dims, by_head(effective_labels(shares))),
        },
        coords={"cluster": np.array(kinds, dtype=object)},
        attrs={"kinds": counted(kinds, shares.argmax(-1), None)},
    )


def _names(results: xr.Dataset) -> list[str]:
    """All kinds that there could be, in the order of `_Places`, and the two that are no place."""
    offsets = results.row_offset.values.tolist()
    beside = [name.replace("_", " ") for name in ("class_token", "registers") if name in results]
    within = ["local" if reach == 1 else f"within {reach}" for reach in range(1, max(offsets) + 1)]
    single = [offset_name(row, column) for row in offsets for column in offsets]
    return [*single, *beside, "same row", "same column", *within, "uniform", "mixed"]


def _places(results: xr.Dataset, prefix: str = "") -> _Places:
    """Of every head, layer by layer; what equal weights give is repeated for each head."""
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
    return _Places(
        single=np.column_stack([square.reshape(len(square), -1), *beside]),
        lines=np.column_stack([flat(results[prefix + name]) for name in ("same_row", "same_column")]),
        near=np.column_stack(
            [
                np.zeros((len(square), 0)),
                *(
                    square[:, offsets <= reach][:, :, offsets <= reach].sum((1, 2))
                    for reach in range(1, band + 1)
                ),
            ]
        ),
        entropy=flat(results[f"{prefix}entropy"]),
    )


def _codes(results: xr.Dataset, names: list[str], allowed: np.ndarray) -> np.ndarray:
    """Number of the kind of each head among `names`."""
    measured, equal = _places(results), _places(results, "equal_")
    enough = allowed & (measured.candidates >= MORE * equal.candidates)
    single, lines = measured.single.shape[1], measured.lines.shape[1]
    shared = slice(results.sizes["row_offset"] * results.sizes["column_offset"], single)
    enough[:, shared] &= beyond_shared(measured.single[:, shared], equal.single[:, shared])
    shares = np.where(enough[:, :single], measured.single, 0.0)
    moved = np.abs(measured.single - equal.single).sum(-1) / 2
    aside = np.abs(measured.lines - equal.lines).max(-1)
    alike = (np.maximum(moved, aside) <= ALIKE_PLACES) & (
        np.abs(measured.entropy - equal.entropy) <= ALIKE_ENTROPY
    )
    choices = [(shares.max(-1) >= SHARE, shares.argmax(-1)), (alike, names.index("uniform"))]
    within = range(single + lines, single + lines + measured.near.shape[1])
    order = (*within[:1], *range(single, single + lines), *within[1:])
    choices += [(enough[:, place] & (measured.candidates[:, place] >= LOCAL), place) for place in order]
    conditions, codes = zip(*choices, strict=True)
    return np.select(conditions, codes, names.index("mixed"))
