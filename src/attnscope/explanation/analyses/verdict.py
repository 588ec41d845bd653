"""All heads at a glance: where each attends, how much position explains, and whether its scores agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from attnscope.explanation.study import ESTIMATES, SHARES, WHERE, Analysis, Picture, Section
from attnscope.results.schema import Quantity, Row, Table, rows_of, value_of
from attnscope.store.arrays import stacked
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.explanation.evidence import Evidence, Layer
    from attnscope.explanation.study import Study

ERROR = 0.01  # probability that one head or more of a model without preferences seems to have one
SAME = 0.5  # tokens: estimates that are no further apart find the same offset
MOST = 0.5  # share of position from which a head's scores are more position than all else
BY_ACCIDENT = 0.05  # probability from which as many agreements are called no more than accident
ESTIMATED = ("offset_of_spectrum", "offset_of_correlation")
#: Variables of the verdict that say why a head attends there: `attnscope.intervene` stores them too.
WHY = ("offset_of_weights", *ESTIMATED, "position_share", "positional", "asked", "agree", "chance")
#: Variables that colour a head's cell in the figure of all heads, the first that is there, and their labels.
COLOURS = {"position_share": "Share that position explains", "coherence": "Coherence"}
SHARE_MEANING = (
    "share of the variance of the mean scores over offsets, for heads that prefer an offset; estimated between "
    "different texts, so that it may leave 0 to 1 a little"
)
POSITION = Quantity("position_share", "position", "share", SHARE_MEANING, group=SHARES)
WEIGHT = Quantity("peak_weight", "weight", "share", "largest mean weight at one offset", group=WHERE)


def _columns(verdict: xr.Dataset) -> dict[str, Quantity]:
    """The columns of the table of heads, by their variables."""
    peak = (
        "offset at which the scores of queries and keys (without any bias), summed along offsets, have a peak that "
        "stands out of noise"
    )
    more = "offset of that weight, if it is more than chance gives"
    position = "whether position gives more than half of its scores' profile"
    agree = "both estimates are within half a token of the offset of the weights, of heads that position explains"
    detail = "table" if verdict.get("asked", xr.DataArray(False)).any() else "data"
    columns = (
        WEIGHT,
        Quantity("offset_of_weights", "offset", "tokens", more, group=WHERE),
        Quantity("prefers", "more than chance", meaning="whether it is more", detail="page", group=WHERE),
        Quantity("weight_level", "", "share", "mean weight that chance gives there", "data", WHERE),
        Quantity("positional", meaning=position, detail="data", group=WHERE),
        Quantity("offset_of_spectrum", "spectrum", "shift", peak, group=ESTIMATES),
        Quantity("offset_of_correlation", "correlation", "shift", peak, group=ESTIMATES),
        Quantity("agree", meaning=agree, group=ESTIMATES),
        Quantity("chance", "by chance", "share", "how often the estimates of another head would be", detail, ESTIMATES),
        Quantity("coherence", unit="share", meaning="coherence of queries and keys", detail="page", group=ESTIMATES),
        Quantity("weights_of", "", "count", "earlier layer with the same matrices", "data", ESTIMATES),
        POSITION,
    )
    return {column.name: column for column in columns}


def ranked_rows(verdict: xr.Dataset, columns: Mapping[str, xr.DataArray | None]) -> list[Row]:
    """A row for each head, with the values of these columns too, the clearest case first.

    First heads whose estimates agree, then the other positional ones, then the rest; each of these by the largest mean
    weight.
    """
    own = {name: verdict.get(name) for name in (*_columns(verdict), "asked")}
    rows = rows_of({**own, **columns}, verdict[WEIGHT.name].transpose("layer", "head"))
    for row in rows:
        row["agree"] = bool(row["agree"]) if row.pop("asked") else None
        row["weights_of"] = None if row["weights_of"] == row["layer"] else row["weights_of"]
    return sorted(
        rows, key=lambda row: (not row["agree"], not row["positional"], -row[WEIGHT.name], row["layer"], row["head"])
    )


def best_heads(
    rows: Sequence[Row], *, layer: int | None = None, head: int | None = None, count: int | None = 4
) -> list[tuple[int, int]]:
    """The heads to show: the first of `ranked_rows`, of one layer or with one number where requested."""
    for name, requested in (("layer", layer), ("head", head)):
        known = sorted({row[name] for row in rows})
        if requested is not None and requested not in known:
            there = f"they go from {known[0]} to {known[-1]}" if known else "none was explained"
            raise AttnscopeError(f"there is no {name} {requested}: {there}")
    chosen = [row for row in rows if layer in {None, row["layer"]} and head in {None, row["head"]}]
    if not chosen and rows:
        raise AttnscopeError(f"layer {layer} has no head {head}: choose another")
    agreeing = [row for row in chosen if row["agree"]]
    if layer is None and head is None and agreeing:
        chosen = agreeing
    return [(row["layer"], row["head"]) for row in chosen[:count]]


def has(rows: Sequence[Row], *names: str) -> bool:
    """Whether some head has a value in one of these columns."""
    return any(row.get(name) is not None for row in rows for name in names)


def scheme_of(tree: xr.DataTree) -> str:
    """How the position scheme within the scores is called: rotation, bias, or both."""
    kernel = tree["scheme_kernel"].attrs if "scheme_kernel" in tree.children else {}
    return str(kernel.get("scheme", "position scheme"))


def _question(tree: xr.DataTree, rows: Sequence[Row]) -> str:
    """The question of the table of heads: of estimates from the scores, and of a scheme, where there are any."""
    clauses = ["where each head attends"]
    if has(rows, POSITION.name):
        clauses.append("how much of that its positions explain")
    if has(rows, "agree"):
        clauses.append("whether two readings of its scores and one of its weights find the same offset")
    elif has(rows, *ESTIMATED):
        clauses.append("which offset two readings of its scores find")
    if has(rows, "kernel_agrees"):
        clauses.append(f"whether the {scheme_of(tree)} alone predicts it")
    *before, last = clauses
    text = f"{', '.join(before)}, and {last}." if before else f"{last}."
    text = text[0].upper() + text[1:]
    if has(rows, *ESTIMATED):
        text += (
            " The two readings are of one trace, the scores summed along offsets: its peak (cross-correlation) and the "
            "phases of its transform (cross-spectrum). They are not a second source; the weights are."
        )
    return text


def _caption(_: xr.DataTree, rows: Sequence[Row]) -> str:
    text = (
        "One cell for each head: the number is the offset of its largest mean weight (−1 is the token before), none "
        "where that weight is no more than chance"
    )
    if has(rows, POSITION.name):
        text += (
            "; the colour the share of the scores' profile that positions alone explain, grey where a head prefers no "
            "offset and there is nothing to explain"
        )
    elif has(rows, "coherence"):
        text += "; the colour the coherence of queries and keys"
    if has(rows, "agree"):
        text += "; a frame that both readings of the scores find the offset too"
    return f"{text}."


def summary(rows: Sequence[Row]) -> list[str]:
    """The number of heads that prefer an offset, and of those with agreeing estimates, next to chance, in sentences."""
    if not rows:
        return []
    preferring = [row for row in rows if row["prefers"]]
    positional = [row for row in preferring if row["positional"]]
    sentences = [_preferring(len(preferring), rows)]
    if has(preferring, POSITION.name):
        sentences.append(
            f"In {len(positional)} of these {len(preferring)} position gives more than half of the scores' profile."
        )
    if positional and has(rows, *ESTIMATED):
        sentences.append(_agreement(positional))
    return sentences


def _preferring(count: int, rows: Sequence[Row]) -> str:
    heads = (
        f"{count} of {len(rows)} heads {'puts' if count == 1 else 'put'}" if count else f"No head of {len(rows)} puts"
    )
    levels = [f"{row['weight_level']:.2g}" for row in rows if row["weight_level"] is not None]
    level = " to ".join(dict.fromkeys([min(levels, key=float), max(levels, key=float)])) if levels else "–"
    by_offset = ", by offset" if " to " in level else ""
    return (
        f"{heads} more weight on one offset than chance does "
        f"({level}{by_offset}; one head or more in 1 of {1 / ERROR:.0f} models)."
    )


def _agreement(positional: Sequence[Row]) -> str:
    known = [row["agree"] for row in positional]
    agreeing, unknown = known.count(True), known.count(None)
    text = f"In {agreeing} of these {len(positional)} both readings of the scores find the offset of the weights"
    if unknown:
        text += f" (in {unknown} a reading finds none)"
    chances = _chances(positional)
    if not chances:
        return f"{text}; there are no other heads to tell how often that is an accident."
    text += f"; with the scores of other heads {sum(chances):.2g} of {len(chances)} would"
    if shared := shared_weights(positional):
        return f"{text}. That has no probability: {shared}."
    return _with_probability(text, agreeing, chances)


def _with_probability(text: str, count: int, chances: Sequence[float]) -> str:
    """A sentence with the probability of so many successes or more."""
    probability = or_more(count, chances)
    rounded = f"{probability:.1g}" if probability >= 0.0001 else "below 0.0001"  # noqa: PLR2004
    text += f" ({count} or more: probability {rounded})"
    return f"{text}, so this may be accident." if probability > BY_ACCIDENT else f"{text}."


def _chances(positional: Sequence[Row]) -> list[float]:
    """How often the estimates of other heads would agree with each; none where that is not known of all."""
    chances = [row["chance"] for row in positional if row["chance"] is not None]
    return chances if len(chances) == len(positional) else []


def shared_weights(rows: Sequence[Row]) -> str:
    """Why heads are not so many trials, where layers share weights; else empty."""
    first = {(row["layer"] if row["weights_of"] is None else row["weights_of"], row["head"]) for row in rows}
    return f"layers share weights, and the {len(rows)} heads are {len(first)} seen again" * (len(first) < len(rows))


def or_more(count: int, chances: Sequence[float]) -> float:
    """Probability of so many successes or more, in independent trials of these probabilities."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float(distribution[count:].sum())


def peaks_of_noise(rows: Sequence[Row]) -> str:
    """How many heads that prefer no offset have a peak in their cross-spectrum, and how many chance would give."""
    idle = [row for row in rows if not row["prefers"] and row["coherence"] is not None]
    with_peak = sum(row["offset_of_spectrum"] is not None for row in idle)
    if not with_peak:
        return ""
    heads = "1 head that prefers" if len(idle) == 1 else f"{len(idle)} heads that prefer"
    text = (
        f"Of {heads} no offset, the cross-spectrum of {with_peak} has a peak; noise alone gives one to "
        f"{ERROR * len(idle):.2g} of {len(idle)}"
    )
    return f"{text}." if shared_weights(idle) else _with_probability(text, with_peak, [ERROR] * len(idle))


def gives_probability(rows: Sequence[Row]) -> bool:
    """Whether a sentence of the verdict has a probability, which takes heads as independent."""
    positional = [row for row in rows if row["prefers"] and row["positional"]]
    of_estimates = has(rows, *ESTIMATED) and bool(_chances(positional)) and not shared_weights(positional)
    return of_estimates or "probability" in peaks_of_noise(rows)


def _findings(_: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    return [*summary(rows), peaks_of_noise(rows)]


def mask_note(tree: xr.DataTree) -> str:
    """Where peaks are searched, if a mask keeps heads from some offsets; empty where it does not."""
    verdict = tree["verdict"].to_dataset()
    if "lowest_offset" not in verdict.coords:
        return ""
    by_reach: dict[str, list[str]] = {}
    widest = 0
    for layer in verdict["layer"].values:
        low, high = (int(verdict[name].sel(layer=layer)) for name in ("lowest_offset", "highest_offset"))
        by_reach.setdefault(f"{low} to {high}", []).append(str(layer))
        widest += (low, high) == (1 - verdict.attrs["positions"], verdict.attrs["positions"] - 1)
    if widest == verdict.sizes["layer"]:
        return ""
    first, *others = by_reach
    aside = "; ".join(f"layers {', '.join(by_reach[reason])}: {reason}" for reason in others)
    text = f"The mask lets heads attend to offsets {first}{f' ({aside})' if aside else ''}."
    estimated = any(name in verdict and bool(np.isfinite(verdict[name]).any()) for name in ESTIMATED)
    text += " Only these are searched for peaks" + "; scores are read before the mask" * estimated
    return f"{text}.".replace("-", "−")


def zero_note(rows: Sequence[Row]) -> str:
    """What an estimate from the scores of about 0 may be."""
    estimates = [row[name] for row in rows for name in ESTIMATED]
    if not any(value is not None and abs(value) <= SAME for value in estimates):
        return ""
    return (
        "An offset of about 0 from the scores may be tokens that meet themselves: queries and keys are means over "
        "texts, which contain some of their words; noise has no words."
    )


def _verdict(study: Study) -> xr.Dataset:
    results = map(study.result, ("cross_spectrum", "cross_correlation", "position_content"))
    return verdict_of(study.evidence, *results)


def verdict_of(
    evidence: Evidence, spectra: xr.Dataset | None, correlations: xr.Dataset | None, content: xr.Dataset | None
) -> xr.Dataset:
    """Where each head attends, how much position explains, and whether two estimates from its scores agree."""
    verdict = weight_peaks(evidence)
    cells = {"layer": verdict["layer"], "head": verdict["head"]}
    verdict = verdict.assign(_estimates(spectra, correlations, cells))
    if content is not None:
        verdict[POSITION.name] = content[POSITION.name].reindex(cells).where(verdict.prefers)
        verdict[POSITION.name].attrs = {"units": "share", "long_name": "Score profile explained by position"}
    return _judged(verdict).assign_attrs(positions=evidence.length)


def _estimates(
    spectra: xr.Dataset | None, correlations: xr.Dataset | None, cells: dict[str, xr.DataArray]
) -> dict[str, xr.DataArray]:
    """The offsets that the scores give; NaN where they give none."""
    if spectra is None or correlations is None:
        nothing = xr.DataArray(np.nan, cells, ("layer", "head"))
        return dict.fromkeys((*ESTIMATED, "coherence"), nothing)
    weight = spectra.cross_amplitude.where(spectra.in_band.astype(bool), 0.0)
    estimates = {
        "offset_of_spectrum": spectra.band_offset.where(spectra.band_offset_chance <= ERROR),
        "offset_of_correlation": correlations.trace_peak_corrected.where(correlations.trace_peak_clear.astype(bool)),
        "coherence": (spectra.coherence * weight).sum("frequency") / weight.sum("frequency"),
    }
    names = ("Offset by cross-spectrum", "Offset by cross-correlation")
    for name, long_name in zip(ESTIMATED, names, strict=True):
        estimates[name].attrs = {"units": "tokens", "long_name": long_name}
    return {name: values.reset_coords(drop=True).reindex(cells) for name, values in estimates.items()}


def weight_peaks(evidence: Evidence) -> xr.Dataset:
    """Where the weights of each head are largest, and whether that is more than chance: dimensions ``layer, head``."""
    tests = sum(layer.band_sums[0].size for layer in evidence.layers)
    heads = max(layer.heads for layer in evidence.layers)
    parts = [_of_layer(layer, ERROR / tests).reindex(head=np.arange(heads)) for layer in evidence.layers]
    peaks = stacked(parts, "layer", [layer.site.index for layer in evidence.layers])
    peaks["prefers"] = (peaks[WEIGHT.name] > peaks.weight_level) & np.isfinite(peaks.offset_of_weights)
    for name, long_name, units in (
        ("offset_of_weights", "Offset of the largest mean weight", "tokens"),
        (WEIGHT.name, "Largest mean weight", "weight"),
        ("weight_level", "Mean weight that chance gives at that offset", "weight"),
    ):
        peaks[name].attrs = {"long_name": long_name, "units": units}
    lowest, highest = zip(*[layer.reach.offsets for layer in evidence.layers], strict=True)
    same = [next(one.site.index for one in evidence.layers if _same_weights(layer, one)) for layer in evidence.layers]
    return peaks.assign_coords(
        lowest_offset=("layer", list(lowest)), highest_offset=("layer", list(highest)), weights_of=("layer", same)
    )


def _same_weights(layer: Layer, other: Layer) -> bool:
    """Whether two layers share their query and key matrices (ALBERT)."""
    if layer.site.name == other.site.name:
        return True
    one, two = layer.projections, other.projections
    pairs = ((one.query, two.query), (one.key, two.key))
    return all(own is not None and its is not None and np.array_equal(own, its) for own, its in pairs)


def _of_layer(layer: Layer, chance: float) -> xr.Dataset:
    profiles = layer.profiles.mean(0)
    half = profiles.shape[-1] // 2
    offset = np.arange(-half, half + 1)
    low, high = layer.reach.offsets
    at = profiles.argmax(-1)
    # beyond the mask all weights are 0, and known; beyond the band they are not
    known = (np.abs(offset) < half) | (offset == low) | (offset == high)
    return xr.Dataset(
        {
            "offset_of_weights": ("head", np.where(known[at], offset[at], np.nan)),
            WEIGHT.name: ("head", profiles.max(-1)),
            "weight_level": ("head", layer.reach.level(chance)[at]),
        },
        coords={"head": np.arange(layer.heads)},
    )


def _judged(verdict: xr.Dataset) -> xr.Dataset:
    """Add whether each head is positional, whether its estimates agree, and how often those of other heads would."""
    share = verdict.get(POSITION.name)
    by_position = True if share is None else share > MOST
    weights = verdict.offset_of_weights.values
    estimates = np.stack([verdict[name].values for name in ESTIMATED], -1)
    dims = verdict.prefers.dims
    positional = verdict.prefers & by_position
    tested = positional & xr.DataArray(np.isfinite(estimates).all(-1), dims=dims)
    chance = _by_accident(weights.ravel(), estimates.reshape(-1, len(ESTIMATED))).reshape(weights.shape)
    judged = verdict.assign(
        offset_of_weights=verdict.offset_of_weights.where(verdict.prefers),
        positional=positional,
        asked=tested,
        agree=tested & xr.DataArray(_near(weights, estimates), dims=dims),
        chance=xr.DataArray(chance, dims=dims).where(positional),
    )
    judged.asked.attrs = {"long_name": "Positional, and both readings find an offset"}
    judged.agree.attrs = {"long_name": "Both readings find the offset of the weights, of heads that are asked"}
    judged.chance.attrs = {"long_name": "Chance that another head's scores would agree", "units": "share"}
    return judged


def _near(weights: np.ndarray, estimates: np.ndarray) -> Bool[np.ndarray, "*head"]:
    return np.asarray((np.abs(estimates - weights[..., None]) <= SAME).all(-1))


def _by_accident(
    weights: Float[np.ndarray, " head"], estimates: Float[np.ndarray, "head estimate"]
) -> Float[np.ndarray, " head"]:
    """Share of the other heads whose estimates would agree with each."""
    known = np.isfinite(estimates).all(-1)
    near = _near(weights[:, None], estimates[None])
    np.fill_diagonal(near, val=False)
    others = known.sum() - known
    return np.where((others > 0) & np.isfinite(weights), (1 + near.sum(1)) / (1 + others), np.nan)


def _forms(study: Study) -> xr.Dataset:
    """The form of each layer's scores, and how well its matrices reproduce them: dimension ``layer``."""
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


_FORMS = (
    Quantity("layer", unit="count"),
    Quantity("form"),
    Quantity("error", unit="error", meaning="largest difference of the scores that the matrices give, relative"),
    Quantity("reason", "remark", "text"),
)


def _forms_table(tree: xr.DataTree, _: Sequence[Row]) -> Table:
    forms = tree["forms"].to_dataset().reset_coords()
    rows = [{one.name: value_of(forms[one.name].values[at]) for one in _FORMS} for at in range(forms.sizes["layer"])]
    title = "How each layer makes its scores, and how well the matrices reproduce them"
    return Table("forms", title, _FORMS, rows, terminal=0)


FORMS = Analysis("forms", "How each layer makes its scores", "Attention", _forms, tables=_forms_table)

VERDICT = Analysis(
    "verdict",
    "Where each head looks, and what says so",
    "Peaks",
    _verdict,
    section=Section("heads", "All heads", _question),
    pictures=(
        Picture(
            "verdict",
            "Offsets and what position explains",
            _caption,
            draw="attnscope.results.figures.explain:verdict_grid",
        ),
        Picture(
            "offset-agreement",
            "Two readings of the scores against the weights",
            "One disc for each head that prefers an offset, larger the more it weighs it. On the diagonal weights "
            "and scores find the same offset. Both readings are of the same trace, so the right panel checks the "
            "reading, not the head.",
            draw="attnscope.results.figures.explain:offset_agreement",
        ),
    ),
    units="tokens",
    of_arrays=True,
    columns=_columns,
    findings=_findings,
    notes=lambda tree, rows: [mask_note(tree), zero_note(rows)],
)
