"""All heads at a glance: where each looks, how much position explains, and whether its scores say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.explanation.ranking import ERROR, READINGS, judged, rank_explanations, weight_peaks
from attnscope.explanation.sentences import defined_columns, question
from attnscope.explanation.study import Analysis, Picture, Section

if TYPE_CHECKING:
    from attnscope.explanation.evidence import Evidence
    from attnscope.explanation.study import Study


def _forms(study: Study) -> xr.Dataset:
    """What form each layer's scores have and how well the found matrices reproduce them: dimension ``layer``."""
    layers = study.evidence.layers
    return xr.Dataset(
        {
            "form": ("layer", np.array([layer.projections.form for layer in layers], dtype=object)),
            "reason": ("layer", np.array([layer.projections.reason for layer in layers], dtype=object)),
            "error": ("layer", np.array([layer.projections.error for layer in layers])),
            "scale": ("layer", np.array([layer.projections.scale for layer in layers])),
        },
        coords={"layer": [layer.site.index for layer in layers]},
    )


FORMS = Analysis("forms", "How each layer makes its scores", "Attention", _forms)


HEADS = Section("heads", "All heads", lambda tree: question(tree, rank_explanations(tree)))


def _phase_estimates(tree: xr.DataTree) -> str:
    known = defined_columns(rank_explanations(tree))
    said = (
        "One cell for each head: the number is the offset of its largest mean weight (−1 is the token before), none "
        "where that weight is no more than chance"
    )
    if "position_share" in known:
        said += (
            "; the colour the share of the scores' profile that positions alone explain, grey where a head prefers no "
            "offset and there is nothing to explain"
        )
    elif "coherence" in known:
        said += "; the colour the coherence of queries and keys"
    if "agree" in known:
        said += "; a frame that both readings of the scores find the offset too"
    return f"{said}."


def _verdict(study: Study) -> xr.Dataset:
    results = map(study.result, ("cross_spectrum", "cross_correlation", "position_content"))
    return verdict_of(study.evidence, *results)


def verdict_of(
    evidence: Evidence, spectra: xr.Dataset | None, correlations: xr.Dataset | None, content: xr.Dataset | None
) -> xr.Dataset:
    """One line a head: where it looks, how much position explains, and whether two readings of its scores say the
    same.
    """
    verdict = weight_peaks(evidence)
    places = {"layer": verdict["layer"], "head": verdict["head"]}
    verdict = verdict.assign(_estimates(spectra, correlations, places))
    if content is not None:
        verdict["position_share"] = content.position_share.reindex(places).where(verdict.prefers)
        verdict.position_share.attrs = {"units": "share", "long_name": "Score profile explained by position"}
    return judged(verdict).assign_attrs(positions=evidence.length)


def _estimates(
    spectra: xr.Dataset | None, correlations: xr.Dataset | None, places: dict[str, xr.DataArray]
) -> dict[str, xr.DataArray]:
    """What the scores say of the offset, at all places; NaN where they say nothing."""
    if spectra is None or correlations is None:
        nothing = xr.DataArray(np.nan, places, ("layer", "head"))
        return dict.fromkeys((*READINGS, "coherence"), nothing)
    weight = spectra.cross_amplitude.where(spectra.in_band.astype(bool), 0.0)
    readings = {
        "offset_of_spectrum": spectra.band_offset.where(spectra.band_offset_chance <= ERROR),
        "offset_of_correlation": correlations.trace_peak_corrected.where(correlations.trace_peak_clear.astype(bool)),
        "coherence": (spectra.coherence * weight).sum("frequency") / weight.sum("frequency"),
    }
    names = ("Offset by cross-spectrum", "Offset by cross-correlation")
    for name, long_name in zip(READINGS, names, strict=True):
        readings[name].attrs = {"units": "tokens", "long_name": long_name}
    return {name: values.reset_coords(drop=True).reindex(places) for name, values in readings.items()}


VERDICT = Analysis(
    "verdict",
    "Where each head looks, and what says so",
    "Peaks",
    _verdict,
    section=HEADS,
    pictures=(
        Picture(
            "verdict",
            "Offsets and what position explains",
            _phase_estimates,
            draw="attnscope.results.figures.verdict:verdict_grid",
        ),
        Picture(
            "offset-agreement",
            "Two readings of the scores against the weights",
            "One disc for each head that prefers an offset, larger the more it weighs it. On the diagonal weights "
            "and scores find the same offset. Both readings are of the same trace, so the right panel checks the "
            "reading, not the head.",
            draw="attnscope.results.figures.verdict:offset_agreement",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
