"""A test of cause: waves taken out of the position table, and what the cross-spectrum says will follow."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Complex, Float
from torch import Tensor

from attnscope._documents import LEAST, jackknife_interval, units_of, without_each
from attnscope.attention import AttentionCall
from attnscope.capture import layer_coordinates, watching
from attnscope.errors import AttnscopeError
from attnscope.mechanism._not_defined import NotDefinedError
from attnscope.mechanism.arrays import StateMoments
from attnscope.mechanism.evidence import (
    Windows,
    batches,
    interval,
    mean_profile,
    position_tables,
    profile_and_output,
    read,
    replaced_positions,
    token_ids,
)
from attnscope.mechanism.passes._changes import remove_band
from attnscope.mechanism.passes._checks import check_frequencies, check_measured

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture import Site

_HALF = 0.5  # of the cross-spectra's amplitude, that the band holds
_EXCHANGES = 1000
_FEWEST = 5  # heads, whose 120 orders can tell a chance below 0.05
_LOWEST = 3  # cycles per window: below it a spectrum is drift, as everywhere here


def responsible_band(amplitude: Float[np.ndarray, "head frequency"]) -> tuple[int, int]:
    """The narrowest band of frequencies that holds half of the heads' cross-spectra, each head counting the same.

    Parameters
    ----------
    amplitude
        ``(head, frequency)``: sizes of the cross-spectra from frequency 0 on. What lies below 3 cycles is left out.

    Raises
    ------
    AttnscopeError
        If nothing is there from 3 cycles on.

    Examples
    --------
    >>> responsible_band(np.array([[9.0, 0, 0, 1, 6, 5, 1, 1]]))
    (4, 5)
    """
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
    r"""Mean score, unscaled, that some frequencies give to each offset, from -(T - 1) to T - 1.

    :math:`\frac{1}{T^2}\sum_{|f| \in F} C(f)\, e^{2\pi j f t/T}`: their part of the inverse transform of the
    cross-spectrum, which is the circular trace of the scores over T.

    Parameters
    ----------
    cross
        C(f) at frequencies 0 to T/2, complex.
    length
        Tokens of a window, T.
    first, last
        Frequencies, cycles per window.

    Examples
    --------
    >>> score_of_band(np.array([0, 8.0 + 0j, 0]), 4, 1, 1).round(6).tolist()
    [0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0]
    """
    kept = np.zeros(len(cross), dtype=complex)
    kept[first : last + 1] = cross[first : last + 1]
    circle = np.fft.irfft(kept, length) / length
    return circle[np.arange(1 - length, length)]


def gain_without_band(moments: StateMoments, first: int, last: int) -> float:
    r"""By how much a layer's queries times its keys grow where LayerNorm makes up for the waves that are gone.

    A norm gives X the same size before and after, so what is left of it grows:
    :math:`\overline{\|x\|^2} / (\overline{\|x\|^2} - \overline{\|x_F\|^2})`, means over tokens; :math:`x_F` are the
    waves in the position means.

    Parameters
    ----------
    moments
        Moments of X, the layer's input.
    first, last
        First and last frequency removed, cycles per window.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * np.array([1, 3])[None, None] * np.arange(16)[None, :, None] / 16)
    >>> round(gain_without_band(StateMoments.zeros(16, 2).add(wave), 3, 3), 6)
    2.0
    """
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
    r"""Take waves out of the position table, and hold what each head then does against what was to be expected.

    Expected is the head as it is, with the mean score that these waves give to each offset (`score_of_band`) taken off,
    and what is left times g: :math:`A'_{ij} \propto e^{g\,(s_{ij} - s_F(j-i))}`. Measured is the model that reads a
    table without them.

    Parameters
    ----------
    model
        In eval mode, with a table of absolute positions. It is written in place and put back.
    windows
        All equally long.
    cross
        By layer: C(f) of its heads, complex, ``(head, frequency)``.
    frequencies
        First and last frequency removed, cycles per window.
    gains
        g by layer (`gain_without_band`); 1 where none is given.
    band
        Largest offset of the profiles.
    draws, seed
        Number of draws and seed of the bootstrap over documents (windows, where there are fewer than 6): ``_low``
        and ``_high`` are the ends of its 95% interval, NaN of fewer than 6 windows.

    Returns
    -------
    xarray.Dataset
        Over ``layer, head, offset``: ``profile_before``, ``profile_expected``, ``profile_after`` and their intervals.
        Without dimension: ``fit``, :math:`1 - \sum(m - e)^2 / \sum m^2` with the changes measured, m, and expected, e,
        over all heads and offsets (1: as expected; 0: no better than to expect no change), with its interval;
        ``fit_of_others``, the mean of the same with the heads' expected changes exchanged, and ``fit_chance``, the
        share of exchanges in which it is as high (NaN with fewer than 5 heads). ``moved``,
        :math:`\sqrt{\overline{m^2}}`.

    Raises
    ------
    AttnscopeError
        If the model has no position table, the frequencies do not fit the windows, or a setting is out of range.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> model = BertModel(config).eval()
    >>> effects = band_removed(model, [[5, 6, 7, 8] * 4], {0: np.zeros((2, 9), complex)}, (3, 4), band=2)
    >>> bool(np.allclose(effects.profile_before, effects.profile_expected))
    True
    """
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
