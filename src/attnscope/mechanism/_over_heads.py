"""The analyses of single heads over all heads of a model: stacked along ``layer`` and ``head``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from attnscope.errors import AttnscopeError
from attnscope.mechanism._verdict import ERROR, READINGS, judged, weight_peaks
from attnscope.mechanism.arrays import (
    amplitude_spectrum,
    append_one,
    canonical_correlations,
    completion_range,
    cross_correlation,
    cross_spectrum,
    maximum_spectrum,
    phase_map,
    principal_components,
    profile_agreement,
    query_key_waves,
    reparametrize,
    shift_controls,
)
from attnscope.mechanism.evidence import Evidence, Layer

_FLOAT32 = 1e-7  # relative error of the covariances, whose products are summed in float32

OneHead = Callable[[Layer, int], xr.Dataset]


def over_heads(evidence: Evidence, analyse: OneHead) -> xr.Dataset:
    """Stack a head's analysis over all layers with bilinear scores and all their heads.

    ``lowest_offset`` and ``highest_offset``, coordinates over ``layer``, are what the mask lets the heads look at.

    Raises
    ------
    AttnscopeError
        If no layer has bilinear scores; the reason is that of the first layer.
    """
    if not evidence.bilinear:
        first = evidence.layers[0].projections
        reason = first.reason or f"its form is {first.form!r}"
        raise AttnscopeError(f"the scores of no layer are bilinear in X: {reason}. Choose another analysis")
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # LAPACK and FFT leave Python's lock free
        heads = [list(pool.map(partial(analyse, layer), range(layer.heads))) for layer in evidence.bilinear]
    rows = [
        xr.concat(
            one,
            "head",
            join="outer",
            combine_attrs="override",
            data_vars="all",
            coords="different",
            compat="equals",
        )
        for one in heads
    ]
    stacked = xr.concat(
        rows,
        "layer",
        join="outer",
        combine_attrs="override",
        data_vars="all",
        coords="different",
        compat="equals",
    )
    return stacked.assign_coords(
        layer=[layer.site.index for layer in evidence.bilinear],
        head=np.arange(stacked.sizes["head"]),
        layer_name=("layer", np.array([layer.site.name for layer in evidence.bilinear], dtype=object)),
        lowest_offset=("layer", [layer.reach.offsets[0] for layer in evidence.bilinear]),
        highest_offset=("layer", [layer.reach.offsets[1] for layer in evidence.bilinear]),
    )


def inputs_of(layer: Layer, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean X over texts and a column of ones; W_Q and W_K with their biases below."""
    return append_one(layer.moments.position_mean), *layer.matrices(head, affine=True)


def table_spectra(evidence: Evidence) -> xr.Dataset:
    """Spectrum of the whole first position table beside that of as many words (figure 3): dimension ``kind``."""
    kinds = {"positions": evidence.tables[0].rows}
    if len(evidence.words) == len(evidence.tables[0].rows):
        kinds["words"] = evidence.words
    keep = ["mean", "lower_quartile", "upper_quartile", "power", "root_power", "local_ratio", "is_peak"]
    keep += ["null_mean", "null_lower_quartile", "null_upper_quartile"]
    found = [amplitude_spectrum(values)[keep] for values in kinds.values()]
    return xr.concat(
        found, "kind", combine_attrs="override", data_vars="all", coords="minimal", compat="override"
    ).assign_coords(kind=list(kinds))


def table_components(evidence: Evidence) -> xr.Dataset:
    """Principal components of the whole first position table (figure 9)."""
    return principal_components(evidence.tables[0].rows)


def bare_table(rows: Float[np.ndarray, "position column"]) -> xr.Dataset:
    """Spectrum and principal components of a table alone, for models that are only compared by it."""
    spectrum = amplitude_spectrum(rows)
    return spectrum.drop_dims("column").merge(principal_components(rows), combine_attrs="override")


def correlations_by_layer(evidence: Evidence, *, variance: float = 0.999) -> xr.Dataset:
    """Canonical correlations of each layer's X with the position table that it reads: dimension ``layer``.

    `canonical_correlations` of the components that hold this share of the variance of either side, and with
    ``raw_`` before their names the same of all that float32 tells from rounding, where noise counts as much as any.
    """

    def of_layer(layer: Layer) -> xr.Dataset:
        table = evidence.table_of(layer).rows[: evidence.length]
        moments = layer.moments.position_mean, layer.moments.covariance, table, layer.moments.texts
        raw = canonical_correlations(*moments, variance=1.0, rounding=_FLOAT32)
        return canonical_correlations(*moments, variance=variance).merge(
            raw.rename({name: f"raw_{name}" for name in raw.data_vars}),
            join="outer",
            combine_attrs="override",
        )

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = list(pool.map(of_layer, evidence.layers))
    return along_layers(found, [layer.site.index for layer in evidence.layers])


def along_layers(found: Sequence[xr.Dataset], layers: Sequence[int]) -> xr.Dataset:
    """Stack one dataset a layer along ``layer``; what one layer has less of is NaN."""
    stacked = xr.concat(
        list(found),
        "layer",
        join="outer",
        combine_attrs="drop_conflicts",
        data_vars="all",
        coords="different",
        compat="equals",
    )
    return stacked.assign_coords(layer=list(layers))


def waves(evidence: Evidence, *, permutations: int = 5, seed: int = 0) -> xr.Dataset:
    """`query_key_waves` of every head, on the first text's X with biases (figure 4)."""
    tests = sum(2 * layer.heads * layer.matrices(0, affine=False)[0].shape[1] for layer in evidence.bilinear)

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        query, key = layer.matrices(head, affine=True)
        return query_key_waves(
            append_one(layer.sample), query, key, tests=tests, permutations=permutations, seed=seed
        )

    return over_heads(evidence, of_head)


def spectra_by_layer(evidence: Evidence) -> xr.Dataset:
    """Largest amplitude at each frequency over the columns of X, and of Q and K of all heads (figure 5)."""
    found: list[xr.Dataset] = []
    for layer in evidence.bilinear:
        sides: dict[str, list[np.ndarray]] = {"X": [layer.sample], "query": [], "key": []}
        for head in range(layer.heads):
            parts = reparametrize(*layer.matrices(head, affine=True))
            states = append_one(layer.sample)
            sides["query"].append(states @ parts.query)
            sides["key"].append(states @ parts.key)
        spectra = [maximum_spectrum(np.hstack(columns)) for columns in sides.values()]
        found.append(
            xr.concat(
                spectra,
                "side",
                combine_attrs="override",
                data_vars="all",
                coords="minimal",
                compat="override",
            ).assign_coords(side=list(sides))
        )
    return xr.concat(
        found, "layer", combine_attrs="override", data_vars="all", coords="minimal", compat="override"
    ).assign_coords(layer=[layer.site.index for layer in evidence.bilinear])


def cross_spectra(evidence: Evidence, *, band: tuple[int, int] | None = None) -> xr.Dataset:
    """`cross_spectrum` of every head, on the means of X over texts.

    Biases change none of it: their columns are constant, and have no frequency.
    """
    return over_heads(
        evidence,
        lambda layer, head: cross_spectrum(*inputs_of(layer, head), band=band, offsets=layer.reach.offsets),
    )


def phase_maps(
    evidence: Evidence, *, completion: str = "minimal", band: tuple[int, int] | None = None, seed: int = 0
) -> xr.Dataset:
    """`phase_map` of every head, on the means of X over texts (figure 6)."""
    return over_heads(
        evidence,
        lambda layer, head: phase_map(
            *inputs_of(layer, head),
            offsets=layer.reach.offsets,
            completion=completion,  # pyright: ignore[reportArgumentType]
            band=band,
            seed=seed,
        ),
    )


def controls(
    evidence: Evidence,
    heads: Sequence[tuple[int, int]],
    *,
    band: tuple[int, int] | None = None,
    draws: int = 3,
    seed: int = 0,
) -> xr.Dataset:
    """`shift_controls` and `completion_range` of a few heads, on the means of X over texts.

    Parameters
    ----------
    evidence, band
        As in `cross_spectra`.
    heads
        Pairs (layer, head).
    draws, seed
        Of each random control and of the completion, and their seed.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head`` (those of the heads; NaN for pairs that were not asked for). The variables of
        `shift_controls` over ``control``; ``completed_shift`` and ``completed_share``, those of `completion_range`,
        over ``completion``.
    """

    def of_head(pair: tuple[int, int]) -> xr.Dataset:
        layer, head = evidence.layer(pair[0]), pair[1]
        inputs = inputs_of(layer, head)
        other = (head + layer.projections.group) % layer.heads  # the next head with keys of its own
        strange = layer.matrices(other, affine=True)[1] if layer.projections.group < layer.heads else None
        where: dict[str, Any] = {"band": band, "offsets": layer.reach.offsets}
        lost = shift_controls(*inputs, other_key=strange, **where, draws=draws, seed=seed)
        kept = completion_range(*inputs, **where, draws=draws, seed=seed)
        kept = kept.rename(line_shift="completed_shift", share_near="completed_share")
        return lost.merge(kept).expand_dims(layer=[pair[0]], head=[head])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return xr.merge(pool.map(of_head, heads), join="outer", compat="no_conflicts", combine_attrs="drop")


def cross_correlations(evidence: Evidence, *, mode: str = "centre_k", columns: int = 20) -> xr.Dataset:
    """`cross_correlation` of every head: the leading columns and the weighted sum (figure 7).

    Each head's mean weight profile is compared with the profile of its scores.

    See docs/mathematics.md, Scores and weights.
    """

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        states, query, key = inputs_of(layer, head)
        half = layer.band_sums[0].shape[-1] // 2
        parts = reparametrize(query, key)
        found = cross_correlation(
            states @ parts.query,
            states @ parts.key,
            parts.values,
            mode=mode,  # pyright: ignore[reportArgumentType]
            near=half,
            offsets=layer.reach.offsets,
        )
        near = found.trace_mean.sel(offset=slice(-half, half)).values
        weights = layer.profiles.mean(0)[head]
        agreement = profile_agreement(weights, near, band=half, offsets=layer.reach.offsets)
        leading = found.isel(column=slice(columns))
        leading = leading.assign_coords(column=np.arange(leading.sizes["column"]))  # ranks may differ
        return leading.merge(agreement, combine_attrs="drop")

    return over_heads(evidence, of_head)


def verdict(
    evidence: Evidence,
    spectra: xr.Dataset | None,
    correlations: xr.Dataset | None,
    content: xr.Dataset | None,
) -> xr.Dataset:
    """One line a head: where it looks, how much position explains, and whether two readings of its scores say the same.

    Both readings are of one trace, the scores summed along offsets: by its peak, and by the phases of its transform.

    Parameters
    ----------
    evidence, spectra, correlations
        From `gather`, `cross_spectra` and `cross_correlations`; None for the two where no scores are bilinear.
    content
        From `position_content`, or None.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head``. ``offset_of_weights`` (of the largest mean weight within the band),
        ``peak_weight`` (that weight), ``weight_level`` (what it must exceed to be more than chance) and ``prefers``
        (whether it does); ``offset_of_spectrum`` (``band_offset`` of the cross-spectrum, where at most 1 in 100 spectra
        of random phases concentrates as much), ``offset_of_correlation`` (the clear peak of the scores' mean along
        offsets within the band); NaN where there is no such peak. ``coherence`` (weighted mean over the frequencies in
        use); ``position_share`` (share of the profile of the scores that position alone explains); ``positional``,
        ``agree`` and ``chance`` (see `attnscope.mechanism.judged`). Over ``layer``, ``lowest_offset`` and
        ``highest_offset``, between which all are looked for.
    """
    found = weight_peaks(evidence)
    places = {"layer": found["layer"], "head": found["head"]}
    found = found.assign(_readings(spectra, correlations, places))
    if content is not None:
        found["position_share"] = content.position_share.reindex(places)
        found.position_share.attrs = {"units": "share", "long_name": "Score profile explained by position"}
    return judged(found).assign_attrs(positions=evidence.length)


def _readings(
    spectra: xr.Dataset | None, correlations: xr.Dataset | None, places: dict[str, xr.DataArray]
) -> dict[str, xr.DataArray]:
    """What the scores say of the offset, at all places; NaN where they say nothing."""
    if spectra is None or correlations is None:
        nothing = xr.DataArray(np.nan, places, ("layer", "head"))
        return dict.fromkeys((*READINGS, "coherence"), nothing)
    weight = spectra.cross_amplitude.where(spectra.in_band.astype(bool), 0.0)
    found = {
        "offset_of_spectrum": spectra.band_offset.where(spectra.band_offset_chance <= ERROR),
        "offset_of_correlation": correlations.trace_peak_corrected.where(
            correlations.trace_peak_clear.astype(bool)
        ),
        "coherence": (spectra.coherence * weight).sum("frequency") / weight.sum("frequency"),
    }
    names = ("Offset by cross-spectrum", "Offset by cross-correlation")
    for name, long_name in zip(READINGS, names, strict=True):
        found[name].attrs = {"units": "tokens", "long_name": long_name}
    return {name: one.reset_coords(drop=True).reindex(places) for name, one in found.items()}


def form_table(evidence: Evidence) -> xr.Dataset:
    """What form each layer's scores have and how well the found matrices reproduce them: dimension ``layer``."""
    layers = evidence.layers
    text: dict[str, Any] = {
        "form": np.array([layer.projections.form for layer in layers], dtype=object),
        "reason": np.array([layer.projections.reason for layer in layers], dtype=object),
        "error": np.array([layer.projections.error for layer in layers]),
        "scale": np.array([layer.projections.scale for layer in layers]),
    }
    return xr.Dataset(
        {name: ("layer", values) for name, values in text.items()},
        coords={"layer": [layer.site.index for layer in layers]},
    )
