"""One pass over the texts: the layers, tables and words that every analysis uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.explanation.arrays.decomposition import append_one
from attnscope.explanation.inputs import FOR_MATCHING, Windows, batches, model_inputs, read, token_ids, watching_inputs
from attnscope.explanation.profiles import Reach, check_self_attention, check_tokens, pairs_at
from attnscope.explanation.projections import Projections, projections
from attnscope.explanation.tables import PositionTable, position_tables
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.store.arrays import stacked
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress


@dataclass(eq=False)
class StateMoments:
    """Position means and total covariance of hidden states, without storing the states."""

    texts: int  # all of one length
    position_mean: Float[np.ndarray, "position width"]
    # sum over all tokens of the outer products of states about their common mean
    scatter: Float[np.ndarray, "width width"]

    @classmethod
    def zeros(cls, positions: int, width: int) -> StateMoments:
        """Moments of no text."""
        return cls(0, np.zeros((positions, width)), np.zeros((width, width)))

    @property
    def covariance(self) -> Float[np.ndarray, "width width"]:
        """Total covariance over all tokens (divided by their number)."""
        return self.scatter / (self.texts * len(self.position_mean))

    def merge(self, other: StateMoments) -> None:
        """Add the moments of other texts."""
        # the parallel algorithm of Chan et al. (1983): scatters add up, with that of the two means
        total = self.texts + other.texts
        apart = other.position_mean.mean(0) - self.position_mean.mean(0)
        between = len(other.position_mean) * self.texts * other.texts / total
        self.scatter = self.scatter + other.scatter + between * np.outer(apart, apart)
        self.position_mean = self.position_mean + (other.position_mean - self.position_mean) * (other.texts / total)
        self.texts = total


@dataclass(eq=False, kw_only=True)
class LayerSums:
    """Sums of a layer over some texts."""

    moments: StateMoments  # moments of X, the layer's input: position means and covariance
    # ``(text, head, offset)``: weights summed along each offset
    band_sums: list[Float[np.ndarray, "head offset"]] = field(default_factory=list)
    has_bias: bool = False  # whether a bias is added to the scores (T5, ALiBi)

    def add(self, other: LayerSums) -> None:
        """Add the sums over other texts."""
        self.moments.merge(other.moments)
        self.band_sums += other.band_sums
        self.has_bias = self.has_bias or other.has_bias


@dataclass(eq=False, kw_only=True)
class Layer(LayerSums):
    """One attention layer over all texts."""

    site: Site  # which attention call
    projections: Projections  # its matrices, verified
    sample: Float[np.ndarray, "position width"]  # x of the first text, ``(position, width)``
    reach: Reach  # reach of its mask: the offsets that a query may attend to

    @property
    def profiles(self) -> Float[np.ndarray, "window head offset"]:
        """Mean weight at each offset; NaN at offsets beyond the window."""
        sums = np.stack(self.band_sums)
        pairs = pairs_at(len(self.sample), len(self.sample), sums.shape[-1] // 2)
        return sums / np.where(pairs > 0, pairs, np.nan)

    @property
    def heads(self) -> int:
        return self.band_sums[0].shape[0]

    def matrices(self, head: int, *, affine: bool) -> tuple[Float[np.ndarray, "width r"], Float[np.ndarray, "width r"]]:
        """W_Q and W_K of a head; with `affine`, biases are stacked below, for X with a column of ones."""
        check_range("head", head, self.heads)
        query, query_bias, key, key_bias = self.projections.of_head(head)
        if not affine:
            return query, key
        return np.vstack([query, query_bias]), np.vstack([key, key_bias])


@dataclass(eq=False)
class Evidence:
    """All layers and the position tables."""

    layers: list[Layer]  # self-attention layers, in the order of the calls
    tables: list[PositionTable]  # position tables of the model; empty for RoPE and the like
    texts: int  # number of texts, and tokens in each
    length: int
    # whether the model also has cross-attention, which has no offsets: its layers are left out
    crosses: bool = False

    def table_of(self, layer: Layer) -> PositionTable:
        """The table that a layer's side of the model reads: an encoder and a decoder may each have one."""
        part = layer.site.name.split(".")

        def shared_modules(table: PositionTable) -> int:
            pairs = zip(table.name.split("."), part, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return max(self.tables, key=shared_modules)

    def layer(self, index: int) -> Layer:
        """The layer of that call."""
        for layer in self.layers:
            if layer.site.index == index:
                return layer
        raise no_layer(index, [layer.site.index for layer in self.layers])

    @property
    def bilinear(self) -> list[Layer]:
        """Layers whose score is exactly bilinear in X, where query and key waves are defined."""
        return [layer for layer in self.layers if layer.projections.form == "bilinear"]


def no_layer(index: int, existing: Sequence[int]) -> AttnscopeError:
    """The error for a layer that does not exist."""
    return AttnscopeError(f"there is no self-attention layer {index}: choose from {', '.join(map(str, existing))}")


def check_range(name: str, number: int, count: int) -> None:
    """Reject a layer or head that does not exist."""
    if not 0 <= number < count:
        raise AttnscopeError(f"there is no {name} {number}: {name}s are counted from 0 to {count - 1}")


def inputs_of(layer: Layer, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean X over texts and a column of ones; W_Q and W_K with their biases below."""
    return append_one(layer.moments.position_mean), *layer.matrices(head, affine=True)


def over_heads(evidence: Evidence, analyse: Callable[[Layer, int], xr.Dataset]) -> xr.Dataset:
    """Stack a head's analysis over all layers with bilinear scores and all their heads."""
    layers = evidence.bilinear
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # LAPACK and FFT leave Python's lock free
        heads = [list(pool.map(partial(analyse, layer), range(layer.heads))) for layer in layers]
    rows = [stacked(of_layer, "head", np.arange(len(of_layer))) for of_layer in heads]
    return stacked(rows, "layer", [layer.site.index for layer in layers]).assign_coords(
        layer_name=("layer", np.array([layer.site.name for layer in layers], dtype=object)),
        lowest_offset=("layer", [layer.reach.offsets[0] for layer in layers]),
        highest_offset=("layer", [layer.reach.offsets[1] for layer in layers]),
    )


UNIT = 16  # batches of a work unit


class Gathering:
    """The pass over the texts, unit by unit, and the total of all units."""

    def __init__(
        self, model: PreTrainedModel, windows: Windows, *, band: int, layer: int | None, head: int | None
    ) -> None:
        self.model, self.band, self.requested = model, band, (layer, head)
        self.windows = list(windows)
        self.ids = token_ids(self.windows, least=2)
        check_self_attention(model, verify(model, model_inputs(model, self.ids[:1]), text=self.ids.names[0]))
        self.matrices_of = projections(model, model_inputs(model, self.ids[:1].start(FOR_MATCHING)))
        self.layers: dict[int, Layer] = {}

    def units(self) -> list[range]:
        """Texts of each unit."""
        parts = [part for part, _ in batches(self.ids)]
        chosen = [parts[first : first + UNIT] for first in range(0, len(parts), UNIT)]
        return [range(unit[0].start, unit[-1].stop) for unit in chosen]

    @torch.no_grad()
    def read(self, texts: range, tell: Tell = no_progress) -> dict[int, LayerSums]:
        """Run the texts of a unit through the model; sums by the number of the layer."""
        if texts.start:
            self._see_first()
        sums: dict[int, LayerSums] = {}

        def observe(site: Site, call: AttentionCall, states: Tensor, _: Tensor) -> Tensor:
            output, rows = measure(call, Need(band=self.band))
            if site.kind == "cross" or rows.band is None:
                return output
            check_tokens(site, states, self.ids.length)
            if site.index not in self.layers:
                self.layers[site.index] = self._layer(site, call, states)
            if site.index not in sums:
                sums[site.index] = LayerSums(moments=StateMoments.zeros(self.ids.length, states.shape[-1]))
            about = (states - states.mean((0, 1))).flatten(0, 1).float()  # products in float32, for speed
            products, mean = (about.T @ about).double().cpu().numpy(), states.mean(0, dtype=torch.float64)
            moments = StateMoments(len(states), mean.cpu().numpy(), products)
            bands = list(rows.band.double().sum(2).cpu().numpy())
            sums[site.index].add(LayerSums(moments=moments, band_sums=bands, has_bias=call.bias is not None))
            return output

        with watching_inputs(self.model, observe):
            for part, batch in batches(self.ids[texts.start : texts.stop]):
                read(self.model, batch)
                if not texts.start + part.start:
                    heads = {index: len(layer_sums.band_sums[0]) for index, layer_sums in sums.items()}
                    layer, head = self.requested
                    if layer is not None and layer not in heads:
                        raise no_layer(layer, sorted(heads))
                    counts = [count for index, count in heads.items() if layer in {None, index}]
                    if head is not None:
                        check_range("head", head, max(counts, default=0))
                done = texts.start + part.stop
                tell(Progress("reading the texts", done / len(self.ids), {"windows": done}))
        return sums

    def evidence(self, units: Iterable[dict[int, LayerSums]]) -> Evidence:
        """The total of all units, in order."""
        for unit in units:
            self._see_first()
            for index, sums in unit.items():
                self.layers[index].add(sums)
        return Evidence(
            layers=[self.layers[index] for index in sorted(self.layers)],
            tables=position_tables(self.model),
            texts=len(self.ids),
            length=self.ids.length,
            crosses=any(site.kind == "cross" for site in self.matrices_of),
        )

    def _see_first(self) -> None:
        """Read the first batch once: samples and reach come from its first text."""
        if not self.layers:
            self.read(range(next(batches(self.ids))[0].stop))

    def _layer(self, site: Site, call: AttentionCall, states: Tensor) -> Layer:
        """A layer from the first text, without sums."""
        matrices = next(matrices for other, matrices in self.matrices_of.items() if other.index == site.index)
        sample, reach = states[0].double().cpu().numpy(), Reach.of(call, self.band)
        moments = StateMoments.zeros(self.ids.length, states.shape[-1])
        return Layer(site=site, projections=matrices, sample=sample, reach=reach, moments=moments)


_BANDS, _MEANS, _SCATTER = "band_sums_", "position_mean_", "scatter_"  # and the number of the layer


def labelled_sums(sums: Mapping[int, LayerSums], texts: range) -> xr.Dataset:
    """Sums of each layer over some texts, in separate variables, as layers may differ in heads and width."""
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for index, layer in sums.items():
        head, part, width = (f"{name}_{index}" for name in ("head", "position", "width"))
        variables[f"{_BANDS}{index}"] = (("window", head, f"offset_{index}"), np.stack(layer.band_sums))
        variables[f"{_MEANS}{index}"] = ((part, width), layer.moments.position_mean)
        variables[f"{_SCATTER}{index}"] = ((width, f"column_{index}"), layer.moments.scatter)
    biased = [index for index, layer in sums.items() if layer.has_bias]
    return xr.Dataset(variables, {"window": np.arange(texts.start, texts.stop)}, {"has_bias": biased})


def sums_of(labelled: xr.Dataset) -> dict[int, LayerSums]:
    """The sums that `labelled_sums` made arrays of."""
    indices = sorted(int(str(name).removeprefix(_BANDS)) for name in labelled.data_vars if str(name).startswith(_BANDS))
    texts = labelled.sizes["window"]
    return {
        index: LayerSums(
            moments=StateMoments(texts, labelled[f"{_MEANS}{index}"].values, labelled[f"{_SCATTER}{index}"].values),
            band_sums=list(labelled[f"{_BANDS}{index}"].values),
            has_bias=index in labelled.attrs["has_bias"],
        )
        for index in indices
    }
