"""Norms of a head's weighted values, and the part of its weights that its output depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import forward
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.inputs import FOR_MATCHING
from attnscope.explanation.profiles import of_layers, pairs_at
from attnscope.explanation.projections import Projections, projections
from attnscope.explanation.study import Study
from attnscope.intervention.calls import band_of, inputs_of, weight_tiles
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import values_of
from attnscope.read.windows import window_name
from attnscope.support.errors import AttnscopeError

_HEAD = ("head",)
#: Dimensions, long name and unit of what is measured in each layer.
VARIABLES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "profile_norms": (("head", "offset"), "Mean share of a row's norms at each offset", "share"),
    "profile_effective": (("head", "offset"), "Mean effective weight at each offset", "weight"),
    "null_share": (_HEAD, "Share of a row's squared weights that do not affect its output", "share"),
    "null_share_permuted": (_HEAD, "The same, mean over permutations of the row", "share"),
    "rank": (_HEAD, "Rank of the values that a row attends to, mean over rows", "1"),
    "free_dimensions": (_HEAD, "Dimension of the weights that give the same output, mean over rows", "1"),
    "identifiable": (_HEAD, "Rows where that dimension is 0", "share"),
}


def norms_and_effective_weights(study: Study, band: int) -> xr.Dataset:
    """Norms of weighted values and effective weights at offsets up to `band`, over ``(window, layer, head)``."""
    model = study.model
    with borrowed(model):
        outputs = output_matrices(model, inputs_of(model, study.windows[0]))
        windows = [
            _of_window(model, inputs_of(model, window), outputs, band, window_name(window, number))
            for number, window in enumerate(study.windows)
        ]
    return xr.concat(windows, "window", data_vars="all", coords="minimal", compat="override", join="override")


def output_matrices(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Float[Tensor, "head value_width width"]]:
    """W_O of each head in every layer, found on the first tokens of a text."""
    length = min(FOR_MATCHING, *(ids.shape[1] for ids in inputs.values()))
    layers = projections(model, {name: ids[:, :length] for name, ids in inputs.items()})
    for site, matrices in layers.items():
        reason = without_output(matrices)
        if reason:
            raise AttnscopeError(
                f"norms is not defined for {type(model).__name__}, layer {site.index} ({site.name}): {reason}. "
                "Leave it out"
            )
    return [output_matrix(model, matrices) for matrices in layers.values()]


def without_output(matrices: Projections) -> str:
    """Why the values of a layer have no output of their own; empty if they have."""
    if matrices.gated is not None:
        return "a gate multiplies the output of its heads, so values have no fixed output"
    if matrices.output is None or matrices.output_bias is None:
        return "no linear layer reads the concatenated output of the heads, so W_O is unknown"
    return ""


def output_matrix(model: PreTrainedModel, matrices: Projections) -> Float[Tensor, "head value_width width"]:
    """W_O of each head, on the device of its module, in single precision or the model's if that is finer."""
    assert matrices.output is not None  # noqa: S101 callers check this
    module = model.get_submodule(matrices.names["output"])
    return torch.from_numpy(matrices.output).to(device_of(module), torch.promote_types(model.dtype, torch.float32))


def _of_window(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    outputs: list[Float[Tensor, "head value_width width"]],
    band: int,
    name: str,
) -> xr.Dataset:
    sites: list[Site] = []
    layers: list[dict[str, np.ndarray]] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        if len(sites) >= len(outputs):
            raise AttnscopeError(
                f"{name} makes more attention calls than the first text ({len(outputs)}), so its layers cannot be "
                "identified"
            )
        values, effective = values_of(call)[0], Effective(call, band)
        readers = [
            norms_profile(call, value_outputs(call, outputs[len(sites)]), band),
            Profile("effective", call, band, effective.band, effective.means),
        ]
        weighed: list[Tensor] = []
        for rows, tile in weight_tiles(call):
            weighed.append(tile @ values)
            for reader in readers:
                reader.add(rows, tile)
        sites.append(site)
        layers.append({name: values for reader in readers for name, values in reader.result().items()})
        return torch.cat(weighed, 1)[None].to(call.query.dtype)

    with torch.no_grad(), watching(model, observe):
        forward(model, inputs, lambda _: name, with_head=False)
    heads = max(len(layer["rank"]) for layer in layers)
    coords: dict[str, Any] = {
        **layer_coordinates(sites),
        "offset": np.arange(-band, band + 1),
        "head": np.arange(heads),
    }
    return xr.Dataset(of_layers(VARIABLES, layers, heads), coords).expand_dims("window")


def value_outputs(
    call: AttentionCall, output: Float[Tensor, "head value_width width"]
) -> Float[Tensor, "head key width"]:
    r"""Output of each head for each key at weight 1: :math:`f_h(x_j) = (x_j W_V + b_V) W_O`."""
    # the norm of a weighted vector is the weight times this one's: no vector of a pair is in memory
    return values_of(call)[0].to(output.dtype) @ output


def norms_profile(call: AttentionCall, vectors: Float[Tensor, "head key width"], band: int) -> Profile:
    """Norms of weighted values, as shares of each row (Kobayashi et al. 2020)."""
    size = vectors.norm(dim=-1)[:, None]
    return Profile("norms", call, band, lambda _, tile: shares(tile * size.to(tile.dtype)))


class Profile:
    """Mean over rows of the entry at each offset, as in `attnscope.scan`.

    `entries` computes them from some rows of the weights: all entries of each row, or only those near the diagonal.
    """

    def __init__(
        self,
        name: str,
        call: AttentionCall,
        band: int,
        entries: Callable[[slice, Tensor], Tensor] = lambda _, tile: tile,
        more: Callable[[], dict[str, np.ndarray]] = dict,
    ) -> None:
        self.name, self.band, self.entries, self.more = name, band, entries, more
        self.pairs = pairs_at(call.query.shape[2], call.key.shape[2], band)
        self.sums: Tensor | None = None

    def add(self, rows: slice, tile: Float[Tensor, "*head row key"]) -> None:
        entries = self.entries(rows, tile)
        banded = entries if self.name == "effective" else band_of(entries, rows.start, self.band)
        summed = banded.double().sum(-2)
        self.sums = summed if self.sums is None else self.sums + summed

    def result(self) -> dict[str, np.ndarray]:
        """``profile_...``, ``(*head, offset)``, NaN at offsets that no row has, and further results."""
        assert self.sums is not None  # noqa: S101 a text has rows
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(self.pairs > 0, self.sums.cpu().numpy() / self.pairs, np.nan)
        return {f"profile_{self.name}": mean} | self.more()


def shares(matrix: Float[Tensor, "*head row key"]) -> Float[Tensor, "*head row key"]:
    """Scale rows to sum to 1, except rows of zeros."""
    total = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(total > 0, total, 1.0)


_LEAST_TOLERANCE = 1e-6  # of singular values, the roots of eigenvalues in double precision


_ROWS_AT_ONCE = 64  # each has its own matrix


_ONES_WITHIN = 1e-8  # share of the column of ones outside the span of the values: less is rounding


class Effective:
    r"""Rows of :math:`A_\text{eff}`, by the Gram matrices of the values that each row attends to."""

    def __init__(self, call: AttentionCall, band: int) -> None:
        self.call, self.width = call, band
        value = call.value[0].double()  # (kv_head, key, r)
        self.values = value
        # values are rounded to their type: directions below that are noise, whatever they are computed in
        self.tolerance = max(2 * torch.finfo(call.value.dtype).eps * min(value.shape[1:]) ** 0.5, _LEAST_TOLERANCE)
        all_visible = call.allowed(0, 0)
        self.is_shared = bool((all_visible == all_visible[0]).all()) and (call.mask is None or call.mask.shape[1] == 1)
        self.visible = all_visible[:1].expand(len(value), -1, -1) if self.is_shared else None
        self.shared = None if self.visible is None else self._inverted(self.visible)
        self.rows: dict[str, list[Tensor]] = {}

    def band(self, rows: slice, tile: Float[Tensor, "head row key"]) -> Float[Tensor, "head row offset"]:
        """Entries at offsets ``-band..band``; also accumulates the results of `means`."""
        if self.shared is None and len(tile[0]) > _ROWS_AT_ONCE:
            parts = range(0, len(tile[0]), _ROWS_AT_ONCE)
            return torch.cat(
                [
                    self.band(slice(rows.start + at, min(rows.start + at + _ROWS_AT_ONCE, rows.stop)), part)
                    for at, part in zip(parts, tile.split(_ROWS_AT_ONCE, 1), strict=True)
                ],
                1,
            )
        visible = self._visible(rows)
        # a row a has the output o = a V; its part in the column space of V, the only one that o depends on, is
        # o (V^T V)^+ V^T (Brunner et al. 2020, section 3)
        inverse, rank = self.shared or self._inverted(visible)
        grouped = tile.double().unflatten(0, (-1, self.call.group))  # (kv_head, group, row, key)
        output = grouped @ self.values[:, None]  # (kv_head, group, row, r)
        through = (inverse[:, None] @ output[..., None])[..., 0]
        entries = through @ self.values[:, None].transpose(-2, -1) * visible[:, None]
        self._add(grouped, (output * through).sum(-1), visible, inverse, rank)
        return band_of(entries.flatten(0, 1), rows.start, self.width)

    def means(self) -> dict[str, np.ndarray]:
        """Means over rows, ``(head,)`` each; ``identifiable`` is the share of rows with no free dimension."""
        return {name: torch.cat(parts, -1).nanmean(-1).cpu().numpy() for name, parts in self.rows.items()}

    def _visible(self, rows: slice) -> Bool[Tensor, "kv_head some key"]:
        """Keys that each row may attend to; a single row if all rows share them."""
        heads, group = len(self.values), self.call.group
        if self.visible is not None:
            return self.visible
        if self.call.mask is None or self.call.mask.shape[1] == 1:
            return self.call.allowed(0, 0, rows).expand(heads, -1, -1)
        return torch.stack([self.call.allowed(0, head * group, rows) for head in range(heads)])

    def _inverted(
        self, visible: Bool[Tensor, "kv_head some key"]
    ) -> tuple[Float[Tensor, "kv_head some r r"], Int[Tensor, "kv_head some"]]:
        """Pseudo-inverse of each row's Gram matrix, and its rank."""
        width = self.values.shape[-1]
        if self.visible is not None:
            inside = self.values[:, self.visible[0, 0]]
            gram = (inside.transpose(-2, -1) @ inside)[:, None]
        else:
            # the Gram matrix of a row is the sum of v v^T over its keys: one product with the mask for all rows
            products = (self.values[..., :, None] * self.values[..., None, :]).flatten(2)  # (kv_head, key, r * r)
            gram = (visible.double() @ products).unflatten(-1, (width, width))
        size, vectors = torch.linalg.eigh(gram)
        inside = size > self.tolerance**2 * size[..., -1:].clamp_min(1e-300)
        inverse = torch.where(inside, 1 / torch.where(inside, size, 1.0), 0.0)
        return (vectors * inverse[..., None, :]) @ vectors.transpose(-2, -1), inside.sum(-1)

    def _add(self, grouped: Tensor, inside: Tensor, visible: Tensor, inverse: Tensor, rank: Tensor) -> None:
        """Accumulate the results of each row, ``(kv_head, group, row)``."""
        power, total = (grouped**2).sum(-1), grouped.sum(-1)
        count = visible.sum(-1)[:, None].double()
        ones = visible.double() @ self.values
        within = (ones * (inverse @ ones[..., None])[..., 0]).sum(-1)[:, None]
        rank = rank[:, None].double()
        # the second moments of n weights in random order are variance I + common 1 1^T: their expected squared part in
        # the column space of V is variance times its rank, plus common times the squared part of the column of ones
        variance = torch.where(count > 1, (power - total**2 / count) / (count - 1).clamp_min(1), power)
        common = torch.where(count > 1, (total**2 / count - variance) / count, 0.0)
        permuted = variance * rank + common * within
        # the sum of a row is fixed too: one constraint more, unless the column of ones is in the column space
        one_more = (rank < count) & (within < (1 - _ONES_WITHIN) * count)
        free = count - rank - one_more.double()
        empty = power == 0
        for name, values in {
            "null_share": (1 - inside / power).clamp(0, 1).masked_fill(empty, torch.nan),
            "null_share_permuted": (1 - permuted / power).clamp(0, 1).masked_fill(empty, torch.nan),
            "rank": rank.expand_as(power),
            "free_dimensions": free.expand_as(power),
            "identifiable": (free == 0).double().expand_as(power),
        }.items():
            self.rows.setdefault(name, []).append(values.flatten(0, 1))
