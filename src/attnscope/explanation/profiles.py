"""Profiles of attention calls: mean weights and scores at each offset, over texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.explanation.arrays.spectrum import Offsets
from attnscope.explanation.inputs import interval, read_all, token_ids
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.masks import forbids
from attnscope.statistics.units import units_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.explanation.study import Study

Variants = Callable[[Site, AttentionCall], dict[str, AttentionCall]]


def pairs_at(queries: int, keys: int, band: int) -> Float[np.ndarray, " offset"]:
    """The number of query-key pairs at each offset from ``-band`` to ``band``."""
    return np.array([len(_with_offset(queries, keys, offset)) for offset in range(-band, band + 1)], np.float64)


def _with_offset(queries: int, keys: int, offset: int) -> range:
    """The queries that have a key at an offset."""
    first = max(0, -offset)
    return range(first, max(first, min(queries, keys - offset)))


def mean_profile(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """Mean weight at each offset, over the rows that have one; float64 on the CPU, NaN where no row has one."""
    return profile_and_output(call, band)[0]


def profile_and_output(
    call: AttentionCall, band: int
) -> tuple[Float[Tensor, "batch head offset"], Float[Tensor, "batch head query width"]]:
    """The mean weight at each offset (float64, on the CPU) and the output of a call, as `measure` returns it."""
    output, rows = measure(call, Need(band=band))
    assert rows.band is not None  # noqa: S101 asked for
    pairs = torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band))
    return torch.where(pairs > 0, rows.band.double().sum(2).cpu() / pairs.clamp_min(1), torch.nan), output


def centred_keys(call: AttentionCall, keys: Sequence[Tensor]) -> list[Tensor]:
    """Keys ``(..., key, width)`` about their mean over the text; unchanged with a softcap or sinks."""
    if call.softcap is not None or call.sinks is not None:
        return list(keys)
    return [key - key.mean(-2, keepdim=True) for key in keys]


def visible_offsets(call: AttentionCall, band: int) -> Bool[np.ndarray, " offset"]:
    """Offsets from ``-band`` to ``band`` that the mask allows for some query of some text."""
    start, stop = (bound.cpu() for bound in call.visible[:2])
    first, last = (bound - torch.arange(call.query.shape[2]) for bound in (start, stop))
    offsets = torch.arange(-band, band + 1)[:, None, None]
    return ((first <= offsets) & (offsets < last)).any(-1).any(-1).numpy()


def bias_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of the bias of the scores, 0 without one; float64 on the CPU."""
    batch, heads = call.query.shape[:2]
    if call.bias is None:
        return torch.zeros(batch, heads, 2 * band + 1, dtype=torch.float64)
    traces: list[Tensor] = []
    for t in range(-band, band + 1):
        values = call.bias.diagonal(t, -2, -1)
        allowed = ~forbids(values)
        total = torch.where(allowed, values.double(), 0.0).sum(-1)
        # a sum over all pairs, as if the forbidden ones had the mean of the others, so that a mask bends no trace;
        # 0 / 0 where all is forbidden, or there is no pair
        traces.append(total * values.shape[-1] / allowed.sum(-1))
    stacked = torch.stack(traces, -1).cpu().expand(batch, heads, -1)
    return torch.where(torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band)) > 0, stacked, 0.0)


def score_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of the scores of a call (scale included, keys about their mean), without the matrix of scores."""
    query = call.query.double()
    key = call.key.double().repeat_interleave(call.group, 1)
    key = call.scale * centred_keys(call, [key])[0]
    queries, keys = query.shape[2], key.shape[2]
    traces: list[Tensor] = []
    for t in range(-band, band + 1):
        pairs = _with_offset(queries, keys, t)
        of_keys = key[:, :, pairs.start + t : pairs.stop + t]
        traces.append((query[:, :, pairs.start : pairs.stop] * of_keys).sum((-1, -2)))
    return torch.stack(traces, -1)


@dataclass(frozen=True, eq=False)
class Reach:
    """The offsets that the queries of a text may attend to."""

    offsets: Offsets  # lowest and highest offset that the mask allows: up to 0 in a causal layer
    # sum of the weights at each offset under uniform attention, ``(offset,)``
    even: Float[np.ndarray, " offset"]
    # number of pairs of positions at each offset, masked ones included, ``(offset,)``
    pairs: Float[np.ndarray, " offset"]

    @classmethod
    def of(cls, call: AttentionCall, band: int) -> Reach:
        """Read the mask of the first text; an offset counts as visible if any head's mask allows it."""
        start, stop = (bound[0].cpu().numpy() for bound in call.visible[:2])
        row = np.arange(len(start))
        count = stop - start
        if call.mask is not None and not call.is_contiguous:
            count = np.minimum(count, call.mask[0].sum(-1).amax(0).cpu().numpy())
        looks = count > 0
        key = row[:, None] + np.arange(-band, band + 1)
        allowed = (key >= start[:, None]) & (key < stop[:, None])
        share = np.divide(1.0, count, out=np.zeros(len(count)), where=looks)
        return cls(
            (int((start - row)[looks].min(initial=0)), int((stop - 1 - row)[looks].max(initial=0))),
            (allowed * share[:, None]).sum(0),
            pairs_at(len(row), call.key.shape[2], band),
        )

    def level(self, chance: float) -> Float[np.ndarray, " offset"]:
        """The mean weight at each offset that a head without favoured offsets exceeds with this probability."""
        most = stats.poisson.isf(chance, self.even)
        return np.divide(most, self.pairs, out=np.full(len(most), np.nan), where=self.pairs > 0)


def without_bias(call: AttentionCall) -> AttentionCall:
    r"""Set a call's bias to its mean over each head's pairs; masked pairs stay masked."""
    if call.bias is None:
        return call
    allowed = ~forbids(call.bias)
    total = torch.where(allowed, call.bias, 0.0).sum((-2, -1), keepdim=True)
    mean = total / allowed.sum((-2, -1), keepdim=True).clamp_min(1)
    return replace(call, bias=torch.where(allowed, mean.to(call.bias.dtype), call.bias))


@dataclass(eq=False)
class Collected:
    """Numbers of every text, by name and attention call."""

    sites: dict[int, Site] = field(default_factory=dict)
    parts: dict[str, dict[int, list[np.ndarray]]] = field(default_factory=dict)  # (text, head, ...) each

    def add(self, name: str, site: Site, values: Tensor | np.ndarray) -> None:
        """Numbers of some texts at one call."""
        self.sites[site.index] = site
        array = values.double().cpu().numpy() if isinstance(values, Tensor) else values
        self.parts.setdefault(name, {}).setdefault(site.index, []).append(array)

    @property
    def heads(self) -> int:
        """The largest number of heads of a call."""
        return max(parts[0].shape[1] for by_call in self.parts.values() for parts in by_call.values())

    def stacked(self, name: str) -> Float[np.ndarray, "window layer head *rest"]:
        """All texts and calls; NaN for missing numbers or heads."""
        layers = {index: np.concatenate(parts) for index, parts in self.parts[name].items()}
        first = next(iter(layers.values()))
        whole = np.full((len(first), len(self.sites), self.heads, *first.shape[2:]), np.nan)
        for row, index in enumerate(sorted(self.sites)):
            if index in layers:
                whole[:, row, : layers[index].shape[1]] = layers[index]
        return whole

    def coordinates(self, band: int) -> dict[str, Any]:
        """Coordinates of ``layer, head, offset``."""
        sites = [self.sites[index] for index in sorted(self.sites)]
        return {**layer_coordinates(sites), "head": np.arange(self.heads), "offset": np.arange(-band, band + 1)}


def of_layers(
    about: Mapping[str, tuple[tuple[str, ...], str, str]], layers: Sequence[Mapping[str, np.ndarray]], heads: int
) -> dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]]:
    """Numbers of layers as variables, by dimensions, long name and unit of each; NaN for what a layer lacks."""
    variables: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]] = {}
    for name, (dims, long_name, units) in about.items():
        present = {at: layer[name] for at, layer in enumerate(layers) if name in layer}
        if present:
            size = np.max([values.shape for values in present.values()], axis=0).astype(int)
            whole = np.full((len(layers), *([heads, *size[1:]] if "head" in dims else size)), np.nan)
            for at, values in present.items():
                whole[(at, *map(slice, values.shape))] = values
            variables[name] = (("layer", *dims), whole, {"long_name": long_name, "units": units})
    return variables


def with_interval(
    name: str,
    dims: tuple[str, ...],
    values: np.ndarray,
    units: Sequence[Hashable],
    *,
    draws: int,
    seed: int,
    attrs: Mapping[str, str] | None = None,
) -> dict[str, tuple[tuple[str, ...], np.ndarray, Mapping[str, str]]]:
    """The mean over texts as a variable, and the ends of its 95% interval, ``_low`` and ``_high``."""
    ends = interval(values, units, draws=draws, seed=seed)
    return {name + end: (dims, part, attrs or {}) for end, part in zip(("", "_low", "_high"), ends, strict=True)}


def profiles_of_variants(
    study: Study, variants: Variants, *, band: int | None, draws: int, seed: int | None
) -> xr.Dataset:
    """Profiles of every call, unchanged and in its variants."""
    model, band, seed = study.model, band or study.band, study.seed if seed is None else seed
    ids, collected = token_ids(study.first()), Collected()

    def observe(site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, band)
        collected.add("model", site, profile)
        for name, variant in variants(site, call).items():
            collected.add(name, site, mean_profile(variant, band))
        return output

    read_all(model, ids, observe)
    check_self_attention(model, list(collected.sites.values()))
    effects = stacked_profiles(collected, band, documents=ids.documents, draws=draws, seed=seed)
    return effects.assign_attrs(length=ids.length)


def stacked_profiles(
    collected: Collected, band: int, *, documents: Sequence[Hashable] | None = None, draws: int = 1000, seed: int = 0
) -> xr.Dataset:
    """``profile`` and ``effect`` (that of the first name minus that of each) over ``variant, layer, head, offset``."""
    profiles = np.stack([collected.stacked(name) for name in collected.parts], 1)  # text, variant, layer, ...
    units, called = units_of(range(len(profiles)) if documents is None else documents)
    arrays = {}
    for name, values in (("profile", profiles), ("effect", profiles[:, :1] - profiles)):
        about = {"long_name": f"mean weight at an offset ({name})", "units": "weight"}
        dims = ("variant", "layer", "head", "offset")
        arrays |= with_interval(name, dims, values, units, draws=draws, seed=seed, attrs=about)
    return xr.Dataset(
        arrays,
        {"variant": list(collected.parts), **collected.coordinates(band)},
        {"texts": len(profiles), "intervals_over": called},
    )


def check_self_attention(model: PreTrainedModel, sites: Sequence[Site]) -> None:
    """Reject a model with cross-attention only."""
    if all(site.kind == "cross" for site in sites):
        raise AttnscopeError(
            f"{type(model).__name__} has no self-attention, which every analysis needs: for cross-attention use scan "
            "(with --target) or align"
        )


def check_tokens(site: Site, states: Tensor, length: int) -> None:
    """Raise an error if the states of a layer are not those of the tokens, as in BLT, which attends over patches."""
    if states.shape[-2] != length:
        raise AttnscopeError(
            f"layer {site.index} ({site.name}) attends over {states.shape[-2]} states of a text of {length} tokens, so "
            "they are not those of tokens. attnscope scan measures its weights"
        )


def check_target(target: np.ndarray, shape: tuple[int, ...], band: int) -> None:
    """Reject target offsets that are not one for each head, or beyond the band."""
    if target.shape != shape or target.dtype.kind not in "iu" or int(np.abs(target).max(initial=0)) > band:
        highest = f" up to {np.abs(target).max()}" if target.size and target.dtype.kind in "biuf" else ""
        raise AttnscopeError(
            f"target_offset has shape {target.shape}{highest} ({target.dtype}); expected whole numbers of shape "
            f"{shape}, layer by head, within the band of {band}"
        )
