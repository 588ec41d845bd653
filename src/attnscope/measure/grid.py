"""Which tokens of a vision encoder are patches, in which rows and columns: told by the model's own numbers."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from attnscope.capture.families import has_class_token, patch_size_of
from attnscope.capture.processors import Processor
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import attend_in_full, output_of
from attnscope.measure.forms import text_mean
from attnscope.measure.observer import LEAST_SHARE, LOCAL
from attnscope.measure.questions import Question, RankedHead, answered, beyond, sink_like
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site

NOTHING = 1e-3  # of the largest change: what a token that another patch or frame makes may change by, through rounding


@dataclass(frozen=True)
class Grid:
    """The tokens of one image."""

    rows: int  # rows and columns of patches
    columns: int
    start: int  # the token of the first patch; the others follow row by row
    tokens: int  # all tokens, also those that are no patches
    class_token: int | None  # number of the class token; None without one

    @property
    def patches(self) -> slice:
        """The tokens that are patches."""
        return slice(self.start, self.start + self.rows * self.columns)

    @property
    def registers(self) -> list[int]:
        """The tokens that are neither patches nor the class token."""
        patches = range(self.tokens)[self.patches]
        return [token for token in range(self.tokens) if token not in patches and token != self.class_token]

    @property
    def names(self) -> tuple[str, ...]:
        """What each token is called: ``[class]``, ``[register 1]``, ``r0c0`` for the patch in row 0, column 0."""
        named = {token: f"[register {number}]" for number, token in enumerate(self.registers, start=1)}
        if self.class_token is not None:
            named[self.class_token] = "[class]"
        return tuple(
            named.get(token) or "r{}c{}".format(*divmod(token - self.start, self.columns))
            for token in range(self.tokens)
        )


@torch.no_grad()
def grid_of(model: PreTrainedModel, pixels: Float[Tensor, "1 channel row column"]) -> Grid | str:
    """Find the patches: which token of the first layer changes when the pixels of one patch do."""
    size = patch_size_of(model.config)
    if size is None:
        return "its config tells no patch_size"
    rows, columns = pixels.shape[2] // size[0], pixels.shape[3] // size[1]
    if not rows or not columns:
        return f"its patch_size {size[0]} x {size[1]} is larger than the image"
    places = [(0, 0), (0, min(1, columns - 1)), (min(1, rows - 1), 0), (rows - 1, columns - 1)]
    probes = pixels.repeat(1 + len(places), 1, 1, 1)
    for probe, (row, column) in zip(probes[1:], places, strict=True):
        probe[:, row * size[0] : (row + 1) * size[0], column * size[1] : (column + 1) * size[1]] += pattern(size, probe)
    seen = first_states(model, {"pixel_values": probes})
    if seen is None:
        return "its weights alone can be seen, which do not tell which token is which patch"
    if seen.shape[0] != len(probes):
        return f"its first layer attends in {seen.shape[0] / len(probes):g} windows of an image"
    changes = (seen[1:] - seen[:1]).abs().amax(-1)
    places_of = [
        (change > NOTHING * change.amax()).nonzero()[:, 0].tolist() if change.amax() > 0 else [] for change in changes
    ]
    first = places_of[0][0] if places_of[0] else 0
    if places_of != [[first + row * columns + column] for row, column in places]:
        return "in its first layer a patch is not one token, or patches do not stand row by row"
    is_class = first > 0 and any(has_class_token(module) for module in model.modules())
    return Grid(rows, columns, first, seen.shape[1], 0 if is_class else None)


def pattern(size: tuple[int, int], like: Tensor) -> Tensor:
    """What is added to a patch: the same each time, and not even, as a model may take off the mean."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape[0], *size, generator=generator, dtype=torch.float32).to(like)


def first_states(model: PreTrainedModel, given: Mapping[str, Tensor]) -> Tensor | None:
    """Keys and values of the first layer, ``(image, token, width)``; None where they are not seen."""
    states: list[Tensor] = []

    def look(site: Site, call: AttentionCall) -> Tensor:
        if site.index == 0 and call.key.shape[-1]:
            both = torch.cat([call.key, call.value], -1)
            states.append(both.transpose(1, 2).flatten(2).double())
        return output_of(call) if call.key.shape[-1] else call.query

    with watching(model, look, weights_suffice=True):
        model(**given)
    return states[0] if states else None


def offset_name(row: int, column: int) -> str:
    """Name an offset as a kind of head."""
    if not row and not column:
        return "self"
    parts = [(abs(row), "up" if row < 0 else "down"), (abs(column), "left" if column < 0 else "right")]
    parts = [(steps, side) for steps, side in parts if steps]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{steps} {side}" for steps, side in parts)


@torch.no_grad()
def measure_patches(call: AttentionCall, grid: Grid, band: int) -> dict[str, Tensor]:
    r"""Where the weights of the patches' rows lie, in patches."""
    rows, columns = grid.rows, grid.columns
    sizes, kind = call.query.shape[:2], torch.promote_types(call.query.dtype, torch.float32)
    along, across = (torch.arange(size, device=call.query.device, dtype=kind) for size in (rows, columns))
    aside = across - across[:, None]  # (query, key): columns to the right
    places = torch.zeros(*sizes, 2 * band + 1, columns, columns, dtype=kind, device=call.query.device)
    names = ("on_patches", "same_row", "same_column", "class_token", "registers", "distance", "down", "right")
    sums = {name: torch.zeros(sizes, dtype=torch.float64, device=call.query.device) for name in names}
    for row in range(rows):
        weights = _weights_of_row(call, grid, row)
        patches = weights[..., grid.patches].unflatten(-1, (rows, columns))  # (..., query, row, column)
        below = along - row
        by_row, by_column = patches.sum((-1, -3)), patches.sum(-2)
        sums["on_patches"] += by_row.sum(-1)
        sums["same_row"] += by_row[..., row]
        sums["same_column"] += by_column.diagonal(dim1=-2, dim2=-1).sum(-1)
        distance = (below[:, None] ** 2 + aside[:, None] ** 2).sqrt()
        sums["distance"] += patches.flatten(2) @ distance.flatten()
        sums["down"] += by_row @ below
        sums["right"] += by_column.flatten(2) @ aside.flatten()
        sums["registers"] += weights[..., grid.registers].sum((-1, -2))
        if grid.class_token is not None:
            sums["class_token"] += weights[..., grid.class_token].sum(-1)
        first, last = max(0, row - band), min(rows, row + band + 1)
        at = slice(first - row + band, last - row + band)
        places[:, :, at] += patches[..., first:last, :].movedim(-2, 2)
    count, held = rows * columns, torch.where(sums["on_patches"] > 0, sums["on_patches"], torch.nan)
    return {
        "patch_profile": _profile(places.double(), rows, band),
        **{name: sums[name] / count for name in ("same_row", "same_column", "class_token", "registers")},
        "patch_distance": sums["distance"] / held,
        "row_offset_mean": sums["down"] / held,
        "column_offset_mean": sums["right"] / held,
    }


def equal_call(call: AttentionCall) -> AttentionCall:
    """A call of one head whose weights are equal over all that each query of `call` may see (its first head's mask)."""
    bias = None
    if call.bias is not None:
        forbidden = call.bias[:, :1] <= torch.finfo(call.bias.dtype).min / 2
        if bool(forbidden.any()):
            bias = torch.zeros_like(call.bias[:, :1]).masked_fill(forbidden, -torch.inf)
    mask = None if call.mask is None else call.mask[:, :1]
    batch = max([1, *(len(tensor) for tensor in (bias, mask) if tensor is not None)])

    def nothing(tokens: int) -> Tensor:
        return call.query.new_zeros(batch, 1, tokens, 1)

    key = nothing(call.key.shape[2])
    return AttentionCall(nothing(call.query.shape[2]), key, key, 1.0, call.causal, mask, bias)


def _weights_of_row(call: AttentionCall, grid: Grid, row: int) -> Tensor:
    """Weights of the patches in one row, ``(batch, head, column, key)``."""
    first = grid.start + row * grid.columns
    part = slice(first, first + grid.columns)
    cut = {name: None if (tensor := getattr(call, name)) is None else tensor[..., part, :] for name in ("mask", "bias")}
    return attend_in_full(replace(call, query=call.query[..., part, :], **cut))[1]


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


_PIXELS = 448  # on the longer side


def jpeg(pixels: Tensor, processor: Processor) -> str:
    """What a model reads of an image, base64 of a small JPEG; "" without Pillow."""
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError:
        return ""
    values = pixels.float().cpu()
    mean, spread = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if getattr(processor, "do_normalize", False) and mean is not None and len(mean) == len(values):
        values = values * values.new_tensor(spread)[:, None, None] + values.new_tensor(mean)[:, None, None]
    elif processor is None:
        values = (values - values.amin()) / (values.amax() - values.amin()).clamp_min(1e-9)
    bytes_ = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return _packed(pillow.fromarray(bytes_[..., 0] if bytes_.shape[-1] == 1 else bytes_[..., :3]).convert("RGB"))


def jpeg_of(pixels: np.ndarray, shape: float) -> str:
    """An image that was given, ``(row, column, 3)`` of 8 bits, drawn to so many columns for a row; "" without
    Pillow.
    """
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError:
        return ""
    longer = max(1.0, shape), max(1.0, 1 / shape)
    size = (round(_PIXELS * longer[0] / max(longer)), round(_PIXELS * longer[1] / max(longer)))
    return _packed(pillow.fromarray(pixels).resize(size))


def _packed(image: Any) -> str:
    image.thumbnail((_PIXELS, _PIXELS))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue()).decode("ascii")


def patch_shares(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Share of all weight of patches at each offset: the profile times the share of patches that have the neighbour."""
    rows, columns = (
        (results[size] - abs(results[offset])).clip(0) / results[size]
        for size, offset in (("rows", "row_offset"), ("columns", "column_offset"))
    )
    return results[f"{prefix}patch_profile"].fillna(0.0) * rows * columns


@reads("scan")
def patch_peaks(results: xr.Dataset) -> xr.Dataset:
    """At which neighbour each head looks most, by means over images."""
    shares = text_mean(patch_shares(results)).transpose("layer", "head", "row_offset", "column_offset")
    known = (
        text_mean(results["patch_profile"]).notnull().any(("row_offset", "column_offset")).transpose("layer", "head")
    )
    stacked = shares.stack(place=("row_offset", "column_offset"))
    best = stacked.argmax("place").values
    peaks = {
        "peak_row_offset": (stacked.row_offset.values[best], "patches"),
        "peak_column_offset": (stacked.column_offset.values[best], "patches"),
        "peak_weight": (stacked.max("place").values, "share"),
    }
    return xr.Dataset(
        {
            name: (("layer", "head"), np.where(known.values, values.astype(float), np.nan), {"units": units})
            for name, (values, units) in peaks.items()
        }
    )


@reads("scan")
def rank_patch_heads(results: xr.Dataset, top: int = 5) -> dict[str, list[RankedHead]]:
    """The most positional, most local and most sink-like heads of a vision encoder, by means over images."""
    shares, equal = (text_mean(patch_shares(results, prefix)) for prefix in ("", "equal_"))
    away = shares.where((shares.row_offset != 0) | (shares.column_offset != 0))
    told = (results.rows * results.columns).sum()
    away = beyond(away, equal, LEAST_SHARE, told)
    near = {"row_offset": abs(shares.row_offset) <= 1, "column_offset": abs(shares.column_offset) <= 1}
    about, of_equal = (grid.isel(near).sum(("row_offset", "column_offset")) for grid in (shares, equal))

    def neighbour(layer: int, head: int) -> str:
        at = away.isel(layer=layer, head=head).fillna(-1.0).stack(place=("row_offset", "column_offset"))
        best = at.isel(place=int(at.argmax("place")))
        return offset_name(int(best.row_offset), int(best.column_offset))

    questions = [
        Question("positional", away.max(("row_offset", "column_offset")), neighbour),
        Question("local", beyond(about, of_equal, LOCAL, told)),
        *sink_like(results, ("class_token", "registers")),
    ]
    return answered(questions, results, top)
