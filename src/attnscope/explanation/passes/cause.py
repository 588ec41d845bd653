"""A test of cause: waves taken out of the position table, and what the cross-spectrum says will follow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Complex, Float
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watching import watching
from attnscope.explanation.arrays.components import StateMoments
from attnscope.explanation.inputs import mean_profile, profile_and_output, score_traces
from attnscope.explanation.not_defined import NotDefinedError
from attnscope.explanation.tables import position_tables, replaced_positions
from attnscope.explanation.tokens import Windows, batches, interval, read, token_ids
from attnscope.kernels.call import AttentionCall
from attnscope.measure.documents import LEAST, jackknife_interval, units_of, without_each
from attnscope.support.checks import DRAWS, check_seed, check_whole
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site

_HALF = 0.5  # of the cross-spectra's amplitude, that the band holds
_EXCHANGES = 1000
_FEWEST = 5  # heads, whose 120 orders can tell a chance below 0.05
_LOWEST = 3  # cycles per window: below it a spectrum is drift, as everywhere here


def responsible_band(amplitude: Float[np.ndarray, "head frequency"]) -> tuple[int, int]:
    """The narrowest band of frequencies that holds half of the heads' cross-spectra, each head counting the same."""
    amplitude = np.asarray(amplitude, dtype=float)[:, _LOWEST:]
    totals = amplitude.sum(1, keepdims=True)
    if not (totals > 0).any():
        raise NotDefinedError(
            f"the cross-spectra are 0 from {_LOWEST} cycles per window on; expected waves: give longer windows"
        )
    share = (amplitude / np.where(totals > 0, totals, 1.0)).sum(0)
    reached = np.concatenate([[0.0], np.cumsum(share / share.sum())])
    stops = np.searchsorted(
        reached, reached[:-1] + _HALF - 1e-12
    )  # the first stop from which a start holds half
    widths = np.where(stops < len(reached), stops - np.arange(len(stops)), len(reached))
    narrowest = np.flatnonzero(widths == widths.min())
    start = int(narrowest[(reached[stops[narrowest]] - reached[narrowest]).argmax()])
    return _LOWEST + start, _LOWEST + int(stops[start]) - 1


def score_of_band(
    cross: Complex[np.ndarray, " frequency"], length: int, first: int, last: int
) -> Float[np.ndarray, " offset"]:
    r"""Mean score, unscaled, that some frequencies give to each offset, from -(T - 1) to T - 1."""
    kept = np.zeros(len(cross), dtype=complex)
    kept[first : last + 1] = cross[first : last + 1]
    circle = np.fft.irfft(kept, length) / length
    return circle[np.arange(1 - length, length)]


def gain_without_band(moments: StateMoments, first: int, last: int) -> float:
    r"""By how much a layer's queries times its keys grow where LayerNorm makes up for the waves that are gone."""
    means = moments.position_mean
    waves = means - remove_band(means, first, last)
    whole = float(np.trace(moments.covariance) + (means.mean(0) ** 2).sum())
    left = whole - float((waves**2).sum(1).mean())
    return whole / left if left > 0 else 1.0


@torch.no_grad()
def band_removed(
    model: PreTrainedModel,
    windows: Windows,
    cross: Mapping[int, np.ndarray],
    frequencies: tuple[int, int],
    *,
    gains: Mapping[int, float] | None = None,
    band: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    r"""Take waves out of the position table, and hold what each head then does against what was to be expected."""
    check_measured(band=band, draws=draws, seed=seed)
    ids = token_ids(list(windows))
    length, (first, last) = ids.length, frequencies
    check_frequencies(frequencies, length)
    tables = position_tables(model)
    if not tables:
        raise AttnscopeError(
            f"{type(model).__name__} has no table of positions: no wave can be taken out of it"
        )
    rows = {table.name: remove_band(table.rows[:length], first, last) for table in tables}
    scores = {
        index: np.stack([score_of_band(head, length, first, last) for head in heads])
        for index, heads in cross.items()
    }
    seen = _Profiles(band, scores, gains or {})
    for _, batch in batches(ids):
        with watching(model, seen.before):
            read(model, batch)
        with replaced_positions(model, rows), watching(model, seen.after):
            read(model, batch)
    units, called = units_of(ids.documents)
    return seen.dataset(units, draws, seed).assign_attrs(
        frequencies=[first, last], texts=len(ids), length=length, intervals_over=called
    )


@dataclass(eq=False)
class _Profiles:
    """Profiles of every text as the model is, as expected, and without the waves."""

    band: int
    scores: dict[int, np.ndarray]  # (head, offset), unscaled, by layer
    gains: Mapping[int, float]
    sites: dict[int, Site] = field(default_factory=dict)
    parts: dict[str, dict[int, list[np.ndarray]]] = field(default_factory=dict)

    def before(self, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, self.band)
        if site.index in self.scores:
            self.sites[site.index] = site
            self._keep("before", site, profile)
            self._keep("expected", site, mean_profile(self._without(site, call), self.band))
        return output

    def after(self, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, self.band)
        if site.index in self.scores:
            self._keep("after", site, profile)
        return output

    def _without(self, site: Site, call: AttentionCall) -> AttentionCall:
        length = call.query.shape[2]
        index = torch.arange(length)
        places = index - index[:, None] + length - 1
        scale = call.scale * self.gains.get(site.index, 1.0)
        taken = torch.from_numpy(scale * self.scores[site.index])[:, places].to(call.query)[None]
        return replace(call, scale=scale, bias=-taken if call.bias is None else call.bias - taken)

    def _keep(self, name: str, site: Site, values: Tensor) -> None:
        self.parts.setdefault(name, {}).setdefault(site.index, []).append(values.numpy())

    def _stacked(self, name: str) -> np.ndarray:
        """``(text, layer, head, offset)``, NaN where a layer has no such head."""
        layers = [np.concatenate(self.parts[name][index]) for index in sorted(self.sites)]
        widest = max(layer.shape[1] for layer in layers)
        return np.stack(
            [
                np.pad(layer, ((0, 0), (0, widest - layer.shape[1]), (0, 0)), constant_values=np.nan)
                for layer in layers
            ],
            1,
        )

    def dataset(self, units: Sequence[Hashable], draws: int, seed: int) -> xr.Dataset:
        profiles = {name: self._stacked(name) for name in ("before", "expected", "after")}
        dims = ("layer", "head", "offset")
        variables: dict[str, object] = {}
        for name, values in profiles.items():
            ends = interval(values, units, draws=draws, seed=seed)
            for end, part in zip(("", "_low", "_high"), ends, strict=True):
                variables[f"profile_{name}{end}"] = (
                    dims,
                    part,
                    {"long_name": "mean weight", "units": "weight"},
                )
        variables |= {
            name: ((), value, {"units": "1"})
            for name, value in _fits(
                profiles["before"], profiles["expected"], profiles["after"], units, seed
            ).items()
        }
        sites = [self.sites[index] for index in sorted(self.sites)]
        return xr.Dataset(
            variables,
            coords={
                **layer_coordinates(sites),
                "head": np.arange(profiles["before"].shape[2]),
                "offset": np.arange(-self.band, self.band + 1),
            },
        )


def _fits(
    before: np.ndarray,
    expected: np.ndarray,
    after: np.ndarray,
    units: Sequence[Hashable],
    seed: int,
) -> dict[str, float]:
    """How well the changes ``(text, layer, head, offset)`` were foretold, and how well other heads' would have been."""
    real = ~np.isnan(before).all((0, -1))  # layers may have fewer heads than others
    measured, foretold = (np.nan_to_num(profile - before)[:, real] for profile in (after, expected))
    here, there = measured.mean(0), foretold.mean(0)
    fit = _fit(here, there)
    low = high = np.nan
    if len(set(units)) >= LEAST:
        left = [
            _fit(np.tensordot(kept, measured, 1), np.tensordot(kept, foretold, 1))
            for kept in without_each(units)
        ]
        low, high = jackknife_interval(fit, np.array(left))
    generator = np.random.default_rng(seed)
    others = [_fit(here, there[generator.permutation(len(there))]) for _ in range(_EXCHANGES)]
    enough = len(there) >= _FEWEST
    return {
        "fit": fit,
        "fit_low": float(low),
        "fit_high": float(high),
        "fit_of_others": float(np.mean(others)) if enough else np.nan,
        "fit_chance": float(np.mean(np.array(others) >= fit)) if enough else np.nan,
        "moved": float(np.sqrt((here**2).mean())),
    }


def _fit(measured: np.ndarray, expected: np.ndarray) -> float:
    """Share of the change that was foretold; NaN where nothing changed."""
    moved = float((measured**2).sum())
    return 1 - float(((measured - expected) ** 2).sum()) / moved if moved > 0 else np.nan


RowChange = Callable[[np.ndarray], np.ndarray]

#: What each change does, by its name.
WORD_CHANGES = {
    "words-zero": "every word vector is zero",
    "words-repeated": "every word is the text's middle one",
    "words-shuffled": "the words of a text change places",
}
POSITION_CHANGES = {
    "positions-zero": "every position vector is zero",
    "positions-mean": "every position vector is their mean",
    "positions-permuted": "position ids change places",
    "positions-reversed": "position ids run backwards",
    "positions-shifted": "position ids begin later",
    "positions-band-removed": "a band of frequencies leaves the position vectors",
    "positions-components-removed": "their first principal components leave the position vectors",
    "positions-phases-random": "waves of the position vectors keep their sizes, not their phases",
}
CHANGES = WORD_CHANGES | POSITION_CHANGES


def remove_band(
    rows: Float[np.ndarray, "position width"], first: int, last: int
) -> Float[np.ndarray, "position width"]:
    """Remove frequencies ``first..last`` (cycles over the rows) from every column."""
    spectrum = np.fft.rfft(rows, axis=0)
    spectrum[first : last + 1] = 0
    return np.fft.irfft(spectrum, len(rows), axis=0)


def remove_components(
    rows: Float[np.ndarray, "position width"], count: int
) -> Float[np.ndarray, "position width"]:
    """Project the first `count` principal components out of the rows; their mean stays."""
    mean = rows.mean(0)
    _, _, directions = np.linalg.svd(rows - mean, full_matrices=False)
    kept = directions[:count]
    return rows - (rows - mean) @ kept.T @ kept


def random_phases(
    rows: Float[np.ndarray, "position width"], seed: int
) -> Float[np.ndarray, "position width"]:
    """Give each column's every frequency a random phase; its amplitudes and its mean stay (Theiler et al. 1992)."""
    spectrum = np.fft.rfft(rows, axis=0)
    phases = np.exp(2j * np.pi * np.random.default_rng(seed).random(spectrum.shape))
    phases[0] = 1
    if len(rows) % 2 == 0:
        phases[-1] = 1  # the highest frequency is real
    return np.fft.irfft(spectrum * phases, len(rows), axis=0)


@dataclass(frozen=True)
class Settings:
    """What each change needs to know, and the changes themselves."""

    shift: int  # tokens by which ids are shifted
    frequencies: tuple[int, int]  # first and last frequency removed, cycles per window
    components: int  # principal components projected out
    seed: int  # seed of permutations and phases

    def order(self, name: str, length: int) -> np.ndarray | None:
        """The position id that each token gets, where ids change places."""
        if name == "positions-reversed":
            return np.arange(length)[::-1].copy()
        if name == "positions-permuted":
            return np.random.default_rng(self.seed).permutation(length)
        return None

    def rows(self, name: str, whole: np.ndarray, length: int) -> np.ndarray:
        """The rows that positions ``0..length-1`` read, changed."""
        rows = whole[:length]
        order = self.order(name, length)
        if order is not None:
            return rows[order]
        changes: dict[str, RowChange] = {
            "positions-zero": np.zeros_like,
            "positions-mean": lambda rows: np.broadcast_to(rows.mean(0), rows.shape).copy(),
            "positions-shifted": lambda _: whole[self.shift : self.shift + length],
            "positions-band-removed": lambda rows: remove_band(rows, *self.frequencies),
            "positions-components-removed": lambda rows: remove_components(rows, self.components),
            "positions-phases-random": lambda rows: random_phases(rows, self.seed),
        }
        return changes[name](rows)

    def words(self, name: str, ids: Tensor, special: Tensor) -> Tensor:
        """Other token ids; special tokens stay in their places."""
        places = self._places(name, special).to(ids.device)
        return ids.gather(1, places)

    def change_of_input(self, name: str, means: np.ndarray, special: Tensor) -> Callable[[Tensor], Tensor]:
        """The same changes on one layer's X, split into position means and the rest."""

        def change(states: Tensor) -> Tensor:
            position = torch.from_numpy(means).to(states)
            content = states - position
            if name == "words-zero":
                content = torch.zeros_like(content)
            elif name in WORD_CHANGES:
                places = self._places(name, special).to(states.device)
                content = content.gather(1, places[:, :, None].expand_as(content))
            else:
                position = torch.from_numpy(self.rows(name, means, len(means))).to(states)
            return position + content

        return change

    def _places(self, name: str, special: Tensor) -> Tensor:
        """Where each token's word comes from, ``(text, position)``."""
        texts, length = special.shape
        places = torch.arange(length).repeat(texts, 1)
        generator = np.random.default_rng(self.seed)
        for text in range(texts):
            words = torch.nonzero(~special[text])[:, 0]
            if name == "words-repeated" and len(words):
                places[text, words] = words[len(words) // 2]
            elif name == "words-shuffled":
                places[text, words] = words[torch.from_numpy(generator.permutation(len(words)))]
        return places


@dataclass(eq=False)
class BeforeAfter:
    """Profiles, traces and outputs of every head, before and after."""

    band: int
    layer: int | None
    order: np.ndarray | None = None
    sites: dict[int, Site] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)  # of the batch, before
    parts: dict[tuple[str, str], dict[int, list[np.ndarray]]] = field(default_factory=dict)

    def before(self, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, self.band)
        if self._wanted(site):
            self.sites[site.index] = site
            self.outputs[site.index] = output
            self._keep("", "profile", site, profile)
            self._keep("", "trace", site, score_traces(call, self.band))
        return output

    def after(self, name: str) -> Callable[[Site, AttentionCall], Tensor]:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            profile, output = profile_and_output(call, self.band)
            if self._wanted(site):
                self._keep(name, "profile", site, profile)
                self._keep(name, "trace", site, score_traces(call, self.band))
                self._keep(name, "output", site, _relative(output, self.outputs[site.index]))
                if self.order is not None:
                    self._keep(name, "by_id", site, mean_profile(_reordered(call, self.order), self.band))
            return output

        return observe

    def _wanted(self, site: Site) -> bool:
        return site.kind != "cross" if self.layer is None else site.index == self.layer

    def _keep(self, name: str, what: str, site: Site, values: Tensor) -> None:
        self.parts.setdefault((name, what), {}).setdefault(site.index, []).append(
            values.double().cpu().numpy()
        )

    def _stacked(self, name: str, what: str) -> np.ndarray:
        """``(text, layer, head, ...)``, NaN where there is no such number."""
        order = sorted(self.sites)
        layers = self.parts.get((name, what), {})
        like = self.parts["", "profile"]
        texts, heads = sum(map(len, like[order[0]])), max(values[0].shape[1] for values in like.values())
        rest = () if what == "output" else (2 * self.band + 1,)
        stacked = np.full((texts, len(order), heads, *rest), np.nan)
        for row, index in enumerate(order):
            if index in layers:
                layer = np.concatenate(layers[index])
                stacked[:, row, : layer.shape[1]] = layer
        return stacked

    def dataset(
        self,
        names: Sequence[str],
        target: np.ndarray | None,
        units: Sequence[Hashable],
        draws: int,
        seed: int,
    ) -> xr.Dataset:
        before = self._stacked("", "profile")
        at: np.ndarray = (
            np.nan_to_num(before.mean(0), nan=-1.0).argmax(-1) - self.band if target is None else target
        )
        check_target(at, before.shape[1:3], self.band)
        after, by_id, trace, output = (
            np.stack([self._stacked(name, what) for name in names], 1)
            for what in ("profile", "by_id", "trace", "output")
        )
        index = (at + self.band)[..., None]
        mass = np.take_along_axis(before, index[None], -1)[..., 0]
        mass_after = np.take_along_axis(after, index[None, None], -1)[..., 0]
        variables: dict[str, Any] = {
            "target": (("layer", "head"), at, {"long_name": "offset", "units": "tokens"})
        }
        heads = ("layer", "head")
        for name, values, dims in (
            ("profile_before", before, (*heads, "offset")),
            ("profile_after", after, ("change", *heads, "offset")),
            ("profile_by_id", by_id, ("change", *heads, "offset")),
            ("trace_before", self._stacked("", "trace"), (*heads, "offset")),
            ("trace_after", trace, ("change", *heads, "offset")),
            ("mass_before", mass, heads),
            ("mass_after", mass_after, ("change", *heads)),
            ("mass_change", mass_after - mass[:, None], ("change", *heads)),
            ("output_change", output, ("change", *heads)),
        ):
            ends = interval(values, units, draws=draws, seed=seed)
            for end, part in zip(("", "_low", "_high"), ends, strict=True):
                variables[name + end] = (dims, part)
        sites = [self.sites[index] for index in sorted(self.sites)]
        return xr.Dataset(
            variables,
            coords={
                "change": list(names),
                **layer_coordinates(sites),
                "head": np.arange(before.shape[2]),
                "offset": np.arange(-self.band, self.band + 1),
            },
        )


def _relative(after: Tensor, before: Tensor) -> Tensor:
    """Norm of the change of each head's output, ``(batch, head)``, as a share of the norm before."""
    change, norm = ((states.double().flatten(2)).norm(dim=-1) for states in (after - before, before))
    return torch.where(change > 0, change / norm, 0.0)


def _reordered(call: AttentionCall, position_ids: np.ndarray) -> AttentionCall:
    """The same call with its tokens in the order of their position ids."""
    order = torch.from_numpy(np.argsort(position_ids)).to(call.query.device)

    def pairs(matrix: Tensor | None) -> Tensor | None:
        return None if matrix is None else matrix[:, :, order][:, :, :, order]

    mask = call.mask
    if call.causal:
        heads = 1 if mask is None else mask.shape[1]
        texts = range(1 if mask is None else mask.shape[0])
        mask = torch.stack(
            [torch.stack([call.allowed(text, head) for head in range(heads)]) for text in texts]
        )
    return replace(
        call,
        query=call.query[:, :, order],
        key=call.key[:, :, order],
        value=call.value[:, :, order],
        causal=False,
        mask=pairs(mask),
        bias=pairs(call.bias),
    )


def check_measured(*, band: int, draws: int, seed: int) -> None:
    """Refuse a band or a bootstrap that cannot be had."""
    check_whole(1, band=band)
    check_whole(1, DRAWS, draws=draws)
    check_seed(seed)


def check_frequencies(frequencies: tuple[int, int], length: int) -> None:
    """Refuse frequencies that windows of so many tokens do not have."""
    first, last = frequencies
    if not 0 <= first <= last <= length // 2:
        raise AttnscopeError(
            f"found frequencies {first} to {last}; expected two between 0 and {length // 2}, half of a window's "
            "tokens, the smaller first"
        )


def check_target(target: np.ndarray, shape: tuple[int, ...], band: int) -> None:
    """Refuse offsets to follow that are not one for each head, or lie beyond the band."""
    if target.shape != shape or target.dtype.kind not in "iu" or int(np.abs(target).max(initial=0)) > band:
        highest = f" up to {np.abs(target).max()}" if target.size and target.dtype.kind in "biuf" else ""
        raise AttnscopeError(
            f"found targets of shape {target.shape}{highest} ({target.dtype}); expected whole numbers of shape "
            f"{shape}, layer by head, within the band of {band}"
        )
