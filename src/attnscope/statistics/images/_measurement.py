"""The forward passes of a scan of images, batch after batch."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from attnscope.capture import (
    Team,
    VisionModel,
    capture_notes,
    forward,
    layer_coordinates,
    verify,
    watching,
)
from attnscope.corpus import Image, Images, Window
from attnscope.errors import AttnscopeError, explaining
from attnscope.progress import Progress, tell_nobody
from attnscope.statistics._catalogue import EQUAL, PATCH_STATISTICS, wording
from attnscope.statistics._map_weights import share_room
from attnscope.statistics._pass import stacked
from attnscope.statistics._sample import WEIGHTS, WINDOWS, MapObserver, shown_heads, tile_size
from attnscope.statistics._sample_dataset import sample_dataset
from attnscope.statistics._turns import UNIT
from attnscope.statistics.images._grid import Grid, grid_of
from attnscope.statistics.images._observer import PatchObserver
from attnscope.statistics.images._picture import jpeg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from attnscope.capture import Observer
    from attnscope.statistics._asked import Asked

_TOKENS = 2048  # at a time
_BAND = 3  # patches
_LAYERS = 6  # that are named one by one


class ImageMeasurement:
    """The forward passes of one scan of images.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> from attnscope.capture import load_vision_model
    >>> from attnscope.corpus import images_of
    >>> from attnscope.statistics._asked import Asked
    >>> config = ViTConfig(image_size=8, patch_size=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> vision = load_vision_model(ViTModel(config).eval(), need_processor=False)
    >>> job = ImageMeasurement(vision, images_of(torch.zeros(3, 3, 8, 8)), ["entropy"], Asked(band=1))
    >>> job.count, next(job.batches()).entropy.shape
    (3, (3, 1, 2))
    """

    unit = UNIT

    def __init__(
        self,
        vision: VisionModel,
        images: Images,
        names: Sequence[str],
        asked: Asked,
    ) -> None:
        self.vision, self.images = vision, images
        self.count = min(len(images), asked.limit or len(images))
        self.progress = asked.progress or tell_nobody
        self.notes: dict[str, str] = {}
        self.team = Team()
        self.seen = 0
        self._grids: dict[tuple[int, ...], Grid | None] = {}  # by channels, rows and columns of pixels
        first = next(iter(images))
        pixels = vision.pixels(first)
        self._check(first, pixels)
        first_grid = grid_of(vision.model, pixels)
        grid = self._grids[tuple(pixels.shape[1:])] = first_grid if isinstance(first_grid, Grid) else None
        if not isinstance(first_grid, Grid):
            self._say_nowhere(first_grid)
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

    def _say_nowhere(self, reason: str) -> None:
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
