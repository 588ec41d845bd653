"""A causal test: remove waves from the position table, and compare the change with the cross-spectrum's prediction."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Complex, Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.analyses.interventions import CHANGED, check_frequencies
from attnscope.explanation.analyses.shift import cross_spectrum
from attnscope.explanation.analyses.verdict import BY_ACCIDENT
from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.arrays.spectrum import remove_band
from attnscope.explanation.evidence import StateMoments
from attnscope.explanation.inputs import Windows, batches, read, token_ids
from attnscope.explanation.profiles import Collected, mean_profile, profile_and_output, with_interval
from attnscope.explanation.study import Picture, Study, analysis, lacks_bilinear_scores, lacks_table
from attnscope.explanation.tables import position_tables, replaced_positions
from attnscope.kernels.call import AttentionCall
from attnscope.options import Count, Draws, Seed
from attnscope.report.schema import Row
from attnscope.statistics.intervals import jackknife_interval
from attnscope.statistics.units import LEAST, units_of, without_each
from attnscope.support.numbers import count

_UNMOVED = 0.01  # root mean square change of a profile, below which there is nothing to predict
_MOSTLY = 0.5  # R² below which the prediction holds only in part
_NEAR = 0.5  # cycles: the same frequency in a table of another length


def _cause(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """Whether removing waves from the position table changes heads as predicted, in a sentence."""
    removed = tree["wave_removal"].to_dataset()
    fit, low, high, chance, moved = (
        float(removed[name]) for name in ("fit", "fit_low", "fit_high", "fit_chance", "moved")
    )
    first, last = removed.attrs["frequencies"]
    length = removed.attrs["length"]
    no_wave = moved < _UNMOVED and not _has_peak(tree, first, last, length)
    if no_wave or (rows and not any(row["prefers"] for row in rows)):
        return []
    text = f"Removing waves of {first} to {last} cycles from the position table"
    if moved < _UNMOVED:
        return [f"{text} hardly changes the heads (root mean square change {moved:.1g})."]
    interval = "" if np.isnan(low) else f", 95% interval {low:.2f} to {high:.2f}"
    numbers = f"(R² = {fit:.2f}{interval})".replace("-", "−")
    if low <= 0 or chance > BY_ACCIDENT:
        return [f"{text} changes the heads, but not as predicted {numbers}."]
    return [f"{text} changes the heads {'partly ' * (fit < _MOSTLY)}as predicted {numbers}."]


def _control(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    removed = tree["wave_removal"].to_dataset()
    others = float(removed["fit_of_others"])
    if np.isnan(others) or "R²" not in "".join(_cause(tree, rows)):
        return []
    texts = count(removed.attrs["texts"], "window")
    return [f"Wave removal, {texts}: with the predictions of other heads R² = {others:.2g}.".replace("-", "−")]


def _has_peak(tree: xr.DataTree, first: int, last: int, length: int) -> bool:
    """Whether the position table has a peak among these waves, in cycles per window; true if unknown."""
    if "position_spectrum" not in tree.children:
        return True
    spectrum = tree["position_spectrum"].to_dataset().sel(table="positions")
    cycles = spectrum["frequency"].values * length / spectrum.attrs["positions"]
    return bool(spectrum["is_peak"].values[(cycles >= first - _NEAR) & (cycles <= last + _NEAR)].any())


@analysis(
    "wave_removal",
    "Waves removed: predicted and measured",
    "Test of cause",
    needs=(lacks_table, lacks_bilinear_scores),
    section=CHANGED,
    pictures=(
        Picture(
            "wave-removal",
            "Waves removed: predicted and measured",
            "The waves that these heads use most are removed from the position table. Grey: before. Dashed: predicted "
            "from the cross-spectrum. Blue: measured. If dashed and blue agree and differ from grey, the waves are a "
            "cause.",
            draw="attnscope_yamamoto2023.figures:wave_removal",
            of="heads",
        ),
    ),
    units="weight",
    few_texts=True,
    findings=_cause,
    notes=_control,
)
def wave_removal(
    study: Study,
    *,
    frequencies: tuple[int, int] | None = None,
    band: Count | None = None,
    draws: Draws = 1000,
    seed: Seed | None = None,
) -> xr.Dataset:
    """Remove the waves that heads use most from the position table, and compare the change with the prediction.

    See mathematics.md, Test of cause.

    Parameters
    ----------
    frequencies
        First and last frequency to remove, cycles per window. Default: the narrowest band with half of the heads'
        cross-spectra.
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents.

    Returns
    -------
    xarray.Dataset
        Over ``layer, head, offset`` (tokens) ``profile_before``, ``profile_expected`` and ``profile_after``, the mean
        weights (share). Scalars: ``fit``, the share of the change that was predicted; ``fit_of_others`` and
        ``fit_chance``, the same with the predictions of other heads; ``moved``, the size of the change.
    """
    computed = study.result("cross_spectrum")
    spectra = cross_spectrum.compute(study) if computed is None else computed
    cross = (spectra.cross_amplitude * np.exp(1j * spectra.phase)).transpose("layer", "head", "frequency")
    by_layer = {
        layer.site.index: cross.sel(layer=layer.site.index).values[: layer.heads] for layer in study.evidence.bilinear
    }
    chosen = frequencies or responsible_band(np.abs(np.concatenate(list(by_layer.values()))))
    gains = {layer.site.index: gain_without_band(layer.moments, *chosen) for layer in study.evidence.bilinear}
    settings = study.defaults(band=band, seed=seed)
    return band_removed(study.model, study.first(), by_layer, chosen, gains=gains, draws=draws, **settings)


_HALF = 0.5  # share of the cross-spectra's amplitude within the band
_EXCHANGES = 1000  # random permutations of the heads
_FEWEST = 5  # heads: their 120 permutations allow p < 0.05
_LOWEST = 3  # cycles per window: slower waves count as drift


def responsible_band(amplitude: Float[np.ndarray, "head frequency"]) -> tuple[int, int]:
    """The narrowest band of frequencies with half of the heads' cross-spectra, each head counted equally."""
    amplitude = np.asarray(amplitude, dtype=float)[:, _LOWEST:]
    totals = amplitude.sum(1, keepdims=True)
    if not (totals > 0).any():
        raise NotDefinedError(
            f"the cross-spectra are 0 from {_LOWEST} cycles per window on: use longer windows (--window)"
        )
    share = (amplitude / np.where(totals > 0, totals, 1.0)).sum(0)
    reached = np.concatenate([[0.0], np.cumsum(share / share.sum())])
    stops = np.searchsorted(reached, reached[:-1] + _HALF - 1e-12)  # the first stop from which a start holds half
    widths = np.where(stops < len(reached), stops - np.arange(len(stops)), len(reached))
    narrowest = np.flatnonzero(widths == widths.min())
    start = int(narrowest[(reached[stops[narrowest]] - reached[narrowest]).argmax()])
    return _LOWEST + start, _LOWEST + int(stops[start]) - 1


def score_of_band(
    cross: Complex[np.ndarray, " frequency"], length: int, first: int, last: int
) -> Float[np.ndarray, " offset"]:
    r"""Unscaled mean score from a band of frequencies at each offset, from -(T - 1) to T - 1."""
    # the correlation theorem: the cross-spectrum is the DFT of the sums of scores along (circular) offsets
    spectrum = np.zeros(len(cross), dtype=complex)
    spectrum[first : last + 1] = cross[first : last + 1]
    return (np.fft.irfft(spectrum, length) / length)[np.arange(1 - length, length)]


def gain_without_band(moments: StateMoments, first: int, last: int) -> float:
    r"""Factor by which LayerNorm rescales a layer's scores once the waves are removed."""
    # LayerNorm divides a state by its root mean square, and a score is a product of two states: so scores grow by the
    # ratio of the mean squares with and without waves
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
    r"""Remove waves from the position table, and compare each head's change with the prediction."""
    ids = token_ids(list(windows))
    length, (first, last) = ids.length, frequencies
    check_frequencies(frequencies, length)
    rows = {table.name: remove_band(table.rows[:length], first, last) for table in position_tables(model)}
    scores = {
        index: np.stack([score_of_band(head, length, first, last) for head in heads]) for index, heads in cross.items()
    }
    collected, gains = Collected(), gains or {}

    def without(site: Site, call: AttentionCall) -> AttentionCall:
        """The call without the scores of these waves."""
        index = torch.arange(length)
        offsets = index - index[:, None] + length - 1
        scale = call.scale * gains.get(site.index, 1.0)
        waves = torch.from_numpy(scale * scores[site.index])[:, offsets].to(call.query)[None]
        return replace(call, scale=scale, bias=-waves if call.bias is None else call.bias - waves)

    def observe(name: str, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, band)
        if site.index in scores:
            collected.add(name, site, profile)
            if name == "before":
                collected.add("expected", site, mean_profile(without(site, call), band))
        return output

    for _, batch in batches(ids):
        with watching(model, partial(observe, "before")):
            read(model, batch)
        with replaced_positions(model, rows), watching(model, partial(observe, "after")):
            read(model, batch)
    units, called = units_of(ids.documents)
    profiles = {name: collected.stacked(name) for name in ("before", "expected", "after")}
    variables: dict[str, Any] = {}
    for name, values in profiles.items():
        dims, about = ("layer", "head", "offset"), {"long_name": "mean weight", "units": "weight"}
        variables |= with_interval(f"profile_{name}", dims, values, units, draws=draws, seed=seed, attrs=about)
    fits = _fits(profiles["before"], profiles["expected"], profiles["after"], units, seed)
    variables |= {name: ((), value, {"units": "1"}) for name, value in fits.items()}
    return xr.Dataset(variables, collected.coordinates(band)).assign_attrs(
        frequencies=[first, last], texts=len(ids), length=length, intervals_over=called
    )


def _fits(
    before: np.ndarray, expected: np.ndarray, after: np.ndarray, units: Sequence[Hashable], seed: int
) -> dict[str, float]:
    """How well the predictions fit the changes ``(window, layer, head, offset)``, also with heads permuted."""
    real = ~np.isnan(before).all((0, -1))  # layers may have fewer heads than others
    measured, predicted = (np.nan_to_num(profile - before)[:, real] for profile in (after, expected))
    mean_measured, mean_predicted = measured.mean(0), predicted.mean(0)
    fit = _fit(mean_measured, mean_predicted)
    low = high = np.nan
    if len(set(units)) >= LEAST:
        left = [
            _fit(np.tensordot(weights, measured, 1), np.tensordot(weights, predicted, 1))
            for weights in without_each(units)
        ]
        low, high = jackknife_interval(fit, np.array(left))
    generator = np.random.default_rng(seed)
    others = [
        _fit(mean_measured, mean_predicted[generator.permutation(len(mean_predicted))]) for _ in range(_EXCHANGES)
    ]
    enough = len(mean_predicted) >= _FEWEST
    return {
        "fit": fit,
        "fit_low": float(low),
        "fit_high": float(high),
        "fit_of_others": float(np.mean(others)) if enough else np.nan,
        "fit_chance": float(np.mean(np.array(others) >= fit)) if enough else np.nan,
        "moved": float(np.sqrt((mean_measured**2).mean())),
    }


def _fit(measured: np.ndarray, expected: np.ndarray) -> float:
    """Share of the change that was predicted; NaN without a change."""
    moved = float((measured**2).sum())
    return 1 - float(((measured - expected) ** 2).sum()) / moved if moved > 0 else np.nan
