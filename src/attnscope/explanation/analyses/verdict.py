"""All heads at a glance: where each attends, how much position explains, and whether its scores predict it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool

from attnscope.explanation.evidence import Evidence, Layer
from attnscope.explanation.study import ESTIMATES, SHARES, WHERE, Analysis, Picture, Section, Study
from attnscope.report.schema import Quantity, Row, Table, rows_of, value_of
from attnscope.statistics.tests import at_least
from attnscope.store.arrays import stacked
from attnscope.support.errors import AttnscopeError

ERROR = 0.01  # probability that one head or more of a model without preferences seems to have one
SAME = 0.5  # tokens: estimates at most this far apart match
MOST = 0.5  # position share above which position explains most of a head's scores
BY_ACCIDENT = 0.05  # p-value above which a number of matches is not significant
ESTIMATED = ("offset_of_spectrum", "offset_of_correlation")
#: Variables of the verdict that say why a head attends there: `attnscope.intervene` stores them too.
WHY = ("offset_of_weights", *ESTIMATED, "position_share", "positional", "comparable", "agree", "chance")
#: Variables that colour a head's cell in the figure of all heads, the first that is there, and their labels.
COLOURS = {"position_share": "Share that position explains", "coherence": "Coherence"}
SHARE_MEANING = (
    "how much of the variance of the mean scores over offsets position explains, however it enters; different texts "
    "are compared, so that the estimate can fall slightly outside 0 to 1"
)
POSITION = Quantity("position_share", "position share", "share", SHARE_MEANING, group=SHARES)
WEIGHT = Quantity("peak_weight", "weight", "share", "largest mean weight at one offset", group=WHERE)


def _columns(verdict: xr.Dataset) -> dict[str, Quantity]:
    """The columns of the table of heads, by their variables."""
    by_phase = (
        "offset that queries and keys predict without position biases, from the phases of their waves "
        "(cross-spectrum); empty without a significant peak"
    )
    by_correlation = "the same from the peak of their cross-correlation"
    agree = "whether both predictions are within half a token of the offset, for heads that position explains"
    random = "share of heads whose predictions match this offset, this head counted as one"
    detail = "table" if verdict.get("comparable", xr.DataArray(False)).any() else "data"
    columns = (
        WEIGHT,
        Quantity("offset_of_weights", "offset", "tokens", "offset of that weight, if significant", group=WHERE),
        Quantity("prefers", "significant", meaning="whether it exceeds the chance level", detail="page", group=WHERE),
        Quantity("weight_level", "", "share", "mean weight at that offset by chance", "data", WHERE),
        Quantity("positional", meaning="whether its position share exceeds 0.5", detail="data", group=WHERE),
        Quantity("offset_of_spectrum", "by phase", "shift", by_phase, group=ESTIMATES),
        Quantity("offset_of_correlation", "by correlation", "shift", by_correlation, group=ESTIMATES),
        Quantity("agree", "match", meaning=agree, group=ESTIMATES),
        Quantity("chance", "match by chance", "share", random, detail, ESTIMATES),
        Quantity("coherence", unit="share", meaning="coherence of queries and keys", detail="page", group=ESTIMATES),
        Quantity("weights_of", "", "count", "earlier layer with the same matrices", "data", ESTIMATES),
        POSITION,
    )
    return {column.name: column for column in columns}


def ranked_rows(verdict: xr.Dataset, columns: Mapping[str, xr.DataArray | None]) -> list[Row]:
    """A row for each head, the clearest case first: matching predictions, then positional heads, then the rest."""
    variables = {name: verdict.get(name) for name in (*_columns(verdict), "comparable")}
    rows = rows_of({**variables, **columns}, verdict[WEIGHT.name].transpose("layer", "head"))
    for row in rows:
        row["agree"] = bool(row["agree"]) if row.pop("comparable") else None
        row["weights_of"] = None if row["weights_of"] == row["layer"] else row["weights_of"]
    return sorted(
        rows, key=lambda row: (not row["agree"], not row["positional"], -row[WEIGHT.name], row["layer"], row["head"])
    )


def best_heads(
    rows: Sequence[Row], *, layer: int | None = None, head: int | None = None, count: int | None = 4
) -> list[tuple[int, int]]:
    """The heads to show: the first of `ranked_rows`, of one layer or with one number where requested."""
    for name, requested in (("layer", layer), ("head", head)):
        existing = sorted({row[name] for row in rows})
        if requested is not None and requested not in existing:
            advice = f"choose from {existing[0]} to {existing[-1]}" if existing else "this run explains no heads"
            raise AttnscopeError(f"{name} {requested} does not exist: {advice}")
    chosen = [row for row in rows if layer in {None, row["layer"]} and head in {None, row["head"]}]
    if not chosen and rows:
        raise AttnscopeError(f"layer {layer} has no head {head}: choose another head")
    agreeing = [row for row in chosen if row["agree"]]
    if layer is None and head is None and agreeing:
        chosen = agreeing
    return [(row["layer"], row["head"]) for row in chosen[:count]]


def has(rows: Sequence[Row], *names: str) -> bool:
    """Whether some head has a value in one of these columns."""
    return any(row.get(name) is not None for row in rows for name in names)


def scheme_of(tree: xr.DataTree) -> str:
    """The name of the position scheme within the scores: rotation, bias, or both."""
    kernel = tree["scheme_kernel"].attrs if "scheme_kernel" in tree.children else {}
    return str(kernel.get("scheme", "position scheme"))


def _question(tree: xr.DataTree, rows: Sequence[Row]) -> str:
    """The question that the table of heads answers."""
    clauses = ["Where does each head attend?"]
    if has(rows, POSITION.name):
        clauses.append("How much of that does position explain?")
    if has(rows, *ESTIMATED):
        clauses.append("Do queries and keys predict the offset?")
    if has(rows, "kernel_agrees"):
        clauses.append(f"Does the {scheme_of(tree)} alone predict it?")
    if has(rows, *ESTIMATED):
        clauses.append(
            "Both predictions use the scores summed along offsets: their peak (cross-correlation) and the phases of "
            "their Fourier transform (cross-spectrum). Only the weights are an independent source."
        )
    return " ".join(clauses)


def _caption(_: xr.DataTree, rows: Sequence[Row]) -> str:
    text = "Each cell is a head, with the offset of its largest mean weight, if significant (−1: previous token)."
    if has(rows, POSITION.name):
        text += " Its colour is the position share, grey without a favoured offset."
    elif has(rows, "coherence"):
        text += " Its colour is the coherence of queries and keys."
    return text + " Framed heads: both predictions match." * has(rows, "agree")


def summary(rows: Sequence[Row]) -> list[str]:
    """How many heads favour an offset, and how many of these position and the scores explain: two sentences."""
    if not rows:
        return []
    preferring = [row for row in rows if row["prefers"]]
    positional = [row for row in preferring if row["positional"]]
    have = "has" if len(preferring) == 1 else "have"
    certainty = f"(p < {ERROR}, corrected for all heads and offsets)"
    sentences = [f"{len(preferring)} of {len(rows)} heads {have} more weight at one offset than by chance {certainty}."]
    claims: list[str] = []
    if has(preferring, POSITION.name):
        claims.append(f"position explains most of the scores of {out_of(len(positional), len(preferring))}")
    if positional and has(rows, *ESTIMATED):
        matches = sum(row["agree"] is True for row in positional)
        those = out_of(matches, len(positional))
        chances = [row["chance"] for row in positional if row["chance"] is not None]
        expected = (
            by_chance(matches, chances, positional) if len(chances) == len(positional) else "no other heads to compare"
        )
        claims.append(f"queries and keys alone predict the offset of {those} ({expected})")
    text = "; ".join(claims)
    return [*sentences, f"{text[0].upper()}{text[1:]}."] if text else sentences


def out_of(part: int, whole: int) -> str:
    return f"all {whole} heads" if part == whole > 1 else f"{part} of these {whole} heads"


def by_chance(count: int, chances: Sequence[float], rows: Sequence[Row]) -> str:
    """The number of matches expected by chance, and the p-value of `count`; none if layers share weights."""
    expected = f"{sum(chances):.2g} by chance"
    first = {(row["layer"] if row["weights_of"] is None else row["weights_of"], row["head"]) for row in rows}
    if len(first) < len(rows):
        return f"{expected}; no p-value: layers share weights, and only {len(first)} of {len(rows)} heads differ"
    probability = at_least(count, chances)
    rounded = f"= {probability:.2g}" if probability >= 0.001 else "< 0.001"  # noqa: PLR2004
    return f"{expected}, p {rounded}" + ": not significant" * (probability > BY_ACCIDENT)


def peaks_of_noise(rows: Sequence[Row]) -> str:
    """How many heads without a favoured offset have a phase peak, next to the number by chance; empty without any."""
    idle = [row for row in rows if not row["prefers"] and row["coherence"] is not None]
    with_peak = sum(row["offset_of_spectrum"] is not None for row in idle)
    if not with_peak:
        return ""
    certainty = by_chance(with_peak, [ERROR] * len(idle), idle)
    return f"Heads without a favoured offset, but with one by phase: {with_peak} of {len(idle)} ({certainty})."


def _chance_level(rows: Sequence[Row]) -> str:
    levels = sorted(row["weight_level"] for row in rows if row["weight_level"] is not None)
    ends = dict.fromkeys(f"{level:.2g}" for level in levels[:1] + levels[-1:])
    return f"Chance level of the largest mean weight: {' to '.join(ends)}." if ends else ""


def mask_note(tree: xr.DataTree) -> str:
    """Which offsets are searched for peaks, if the mask hides some; else empty."""
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
    text = f"The mask allows offsets {first}{f' ({aside})' if aside else ''}: peaks are searched only there"
    estimated = any(name in verdict and bool(np.isfinite(verdict[name]).any()) for name in ESTIMATED)
    return f"{text}{', in the scores before the mask' * estimated}.".replace("-", "−")


def zero_note(rows: Sequence[Row]) -> str:
    """A caution about offsets near 0 by phase or correlation, if there are any."""
    estimates = [row[name] for row in rows for name in ESTIMATED]
    if not any(value is not None and abs(value) <= SAME for value in estimates):
        return ""
    return (
        "An offset near 0 by phase or correlation can mean that tokens match themselves: means over texts still "
        "contain some of their words."
    )


def _verdict(study: Study) -> xr.Dataset:
    return verdict_of(study.evidence, *map(study.result, ("cross_spectrum", "cross_correlation", "position_content")))


def verdict_of(
    evidence: Evidence, spectra: xr.Dataset | None, correlations: xr.Dataset | None, content: xr.Dataset | None
) -> xr.Dataset:
    """Where each head attends, how much position explains, and whether two estimates from its scores match."""
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
    """The offsets that the scores predict; NaN without a significant peak."""
    if spectra is None or correlations is None:
        return dict.fromkeys((*ESTIMATED, "coherence"), xr.DataArray(np.nan, cells, ("layer", "head")))
    weight = spectra.cross_amplitude.where(spectra.in_band.astype(bool), 0.0)
    estimates = {
        "offset_of_spectrum": spectra.band_offset.where(spectra.band_offset_chance <= ERROR),
        "offset_of_correlation": correlations.trace_peak_corrected.where(correlations.trace_peak_clear.astype(bool)),
        "coherence": (spectra.coherence * weight).sum("frequency") / weight.sum("frequency"),
    }
    for name, long_name in zip(ESTIMATED, ("Offset by cross-spectrum", "Offset by cross-correlation"), strict=True):
        estimates[name].attrs = {"units": "tokens", "long_name": long_name}
    return {name: values.reset_coords(drop=True).reindex(cells) for name, values in estimates.items()}


def weight_peaks(evidence: Evidence) -> xr.Dataset:
    """The offset of each head's largest mean weight, and whether it is significant: dimensions ``layer, head``."""
    tests = sum(layer.band_sums[0].size for layer in evidence.layers)
    heads = max(layer.heads for layer in evidence.layers)
    parts = [_of_layer(layer, ERROR / tests).reindex(head=np.arange(heads)) for layer in evidence.layers]
    peaks = stacked(parts, "layer", [layer.site.index for layer in evidence.layers])
    peaks["prefers"] = (peaks[WEIGHT.name] > peaks.weight_level) & np.isfinite(peaks.offset_of_weights)
    for name, long_name, units in (
        ("offset_of_weights", "Offset of the largest mean weight", "tokens"),
        (WEIGHT.name, "Largest mean weight", "weight"),
        ("weight_level", "Mean weight at that offset by chance", "weight"),
    ):
        peaks[name].attrs = {"long_name": long_name, "units": units}
    lowest, highest = zip(*[layer.reach.offsets for layer in evidence.layers], strict=True)
    same = [next(one.site.index for one in evidence.layers if _same_weights(layer, one)) for layer in evidence.layers]
    return peaks.assign_coords(
        lowest_offset=("layer", list(lowest)), highest_offset=("layer", list(highest)), weights_of=("layer", same)
    )


def _same_weights(layer: Layer, other: Layer) -> bool:
    """Whether two layers share their query and key matrices (ALBERT)."""
    one, two = layer.projections, other.projections
    if one.query is None or one.key is None or two.query is None or two.key is None:
        return layer.site.name == other.site.name
    same = np.array_equal(one.query, two.query) and np.array_equal(one.key, two.key)
    return same or layer.site.name == other.site.name


def _of_layer(layer: Layer, chance: float) -> xr.Dataset:
    profiles = layer.profiles.mean(0)
    half = profiles.shape[-1] // 2
    offset = np.arange(-half, half + 1)
    low, high = layer.reach.offsets
    at = profiles.argmax(-1)
    # beyond the mask all weights are 0, and known; beyond the band they are not
    measured = (np.abs(offset) < half) | (offset == low) | (offset == high)
    return xr.Dataset(
        {
            "offset_of_weights": ("head", np.where(measured[at], offset[at], np.nan)),
            WEIGHT.name: ("head", profiles.max(-1)),
            "weight_level": ("head", layer.reach.level(chance)[at]),
        },
        coords={"head": np.arange(layer.heads)},
    )


def _judged(verdict: xr.Dataset) -> xr.Dataset:
    """Add whether each head is positional, whether its estimates match, and how often those of any head would."""
    share = verdict.get(POSITION.name)
    by_position = True if share is None else share > MOST
    weights = verdict.offset_of_weights.values
    estimates = np.stack([verdict[name].values for name in ESTIMATED], -1)
    dims = verdict.prefers.dims
    positional = verdict.prefers & by_position
    flat, finite = estimates.reshape(-1, len(ESTIMATED)), np.isfinite(estimates).all(-1)
    tested = positional & xr.DataArray(finite, dims=dims)
    near = _near(weights.reshape(-1, 1), flat[None])  # estimates of the other heads that would match
    np.fill_diagonal(near, val=False)
    others = finite.sum() - finite
    # the head itself counts among those drawn, so that the share is never 0 (Phipson and Smyth 2010)
    matching = (1 + near.sum(1).reshape(weights.shape)) / (1 + others)
    chance = np.where((others > 0) & np.isfinite(weights), matching, np.nan)
    judged = verdict.assign(
        offset_of_weights=verdict.offset_of_weights.where(verdict.prefers),
        positional=positional,
        comparable=tested,
        agree=tested & xr.DataArray(_near(weights, estimates), dims=dims),
        chance=xr.DataArray(chance, dims=dims).where(positional),
    )
    judged.comparable.attrs = {"long_name": "Positional, and both predictions exist"}
    judged.agree.attrs = {"long_name": "Both predictions match the offset of the weights"}
    judged.chance.attrs = {
        "long_name": "Share of heads whose predictions match, this head counted as one",
        "units": "share",
    }
    return judged


def _near(weights: np.ndarray, estimates: np.ndarray) -> Bool[np.ndarray, "*head"]:
    return np.asarray((np.abs(estimates - weights[..., None]) <= SAME).all(-1))


def _forms(study: Study) -> xr.Dataset:
    """The form of each layer's scores, and the error of its matrices: dimension ``layer``."""
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
    Quantity("error", unit="error", meaning="largest relative error of the scores from the matrices"),
    Quantity("reason", "remark", "text"),
)


def _forms_table(tree: xr.DataTree, _: Sequence[Row]) -> Table:
    forms = tree["forms"].to_dataset().reset_coords()
    rows = [{one.name: value_of(forms[one.name].values[at]) for one in _FORMS} for at in range(forms.sizes["layer"])]
    return Table("forms", "How each layer computes its scores", _FORMS, rows, terminal=0)


FORMS = Analysis("forms", "How each layer computes its scores", "Attention", _forms, tables=_forms_table)

VERDICT = Analysis(
    "verdict",
    "Where each head attends, and why",
    "Peaks",
    _verdict,
    section=Section("heads", "All heads", _question),
    pictures=(
        Picture(
            "verdict",
            "Favoured offsets and position shares",
            _caption,
            draw="attnscope.results.figures.explain:verdict_grid",
        ),
        Picture(
            "offset-agreement",
            "Offsets predicted from the scores, against the weights",
            "Each disc is a head that favours an offset; its size is the weight there. On the diagonal, scores and "
            "weights have the same offset. The right panel compares both predictions, which share the same scores.",
            draw="attnscope.results.figures.explain:offset_agreement",
        ),
    ),
    units="tokens",
    of_arrays=True,
    columns=_columns,
    findings=lambda _, rows: summary(rows),
    notes=lambda tree, rows: [_chance_level(rows), peaks_of_noise(rows), mask_note(tree), zero_note(rows)],
)
