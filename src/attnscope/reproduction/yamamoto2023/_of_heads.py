"""Rows about heads and layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays import reparametrize
from attnscope.reproduction.yamamoto2023._finding import Finding
from attnscope.reproduction.yamamoto2023._subject import (
    FEW_LABELS,
    LEANS,
    LOBES,
    NEXT_LEFT,
    SCORE_BAND,
    Subject,
)
from attnscope.statistics import RARE, direction


def clustered(subject: Subject) -> Finding:
    texts = subject.evidence.texts
    _, names, by_layer = subject.labels
    sizes = f"{texts} texts x {len(by_layer)} x {by_layer[0]}"
    offsets = subject.evidence.layers[0].band_sums[0].shape[-1]
    count = texts * sum(by_layer)
    return Finding(f"{sizes} = {count:,} vectors, k={len(names)}, {offsets} offsets", count)


def few_labels(subject: Subject) -> Finding:
    shares, _, by_layer = subject.labels
    few = (shares >= RARE).sum(1) <= FEW_LABELS
    percent = 100 * few.mean()
    layer = np.repeat(np.arange(len(by_layer)), by_layer) + 1
    head = np.concatenate([np.arange(count) for count in by_layer]) + 1
    others = [f"({a},{b})" for a, b, fine in zip(layer, head, few, strict=True) if not fine]
    note = f"more labels: {' '.join(others[:12])}{' ...' * (len(others) > 12)}" if others else ""  # noqa: PLR2004
    directed = subject.directed
    of_directed = (
        f"; {100 * few[directed].mean():.0f}% of the {directed.sum()} directed" if directed.any() else ""
    )
    return Finding(f"{percent:.0f}% of {len(few)} heads{of_directed}", percent, bool(percent >= 90), note)  # noqa: PLR2004


def offset_of_weights(layer: int, head: int, wanted: int, least: float = 0.0) -> Callable[[Subject], Finding]:
    def row(subject: Subject) -> Finding:
        sums = subject.profile(layer, head)
        at = int(sums.argmax())
        offset = at - len(sums) // 2
        scores, seen = (_trace_peak(subject, layer, head, paper=paper) for paper in (True, False))
        share = sums[at] / subject.length
        text = f"t={offset:+d} ({share:.2f} of the weight); scores {_peak(scores)}, centred {_peak(seen)}"
        return Finding(text, offset, bool(offset == wanted and share >= least))

    return row


def offset_of_scores(subject: Subject) -> Finding:
    sums = subject.profile(1, 1)
    scores, seen = (_trace_peak(subject, 1, 1, paper=paper) for paper in (True, False))
    weights = int(sums.argmax()) - len(sums) // 2
    holds = scores in NEXT_LEFT
    note = "" if holds or seen not in NEXT_LEFT else "only without the mean key, to which softmax is blind"
    return Finding(f"t={_peak(scores)}; centred {_peak(seen)}, weights {weights:+d}", scores, holds, note)


def _trace_peak(subject: Subject, layer: int, head: int, *, paper: bool) -> float:
    return float(subject.scores(layer, head, paper=paper).trace_peak_offset.sel(range="near"))


def _peak(offset: float) -> str:
    return f"{offset:+.0f}" if np.isfinite(offset) else "none"


def other_side(subject: Subject) -> Finding:
    sums = subject.profile(7, 5)
    lean = float(direction(sums))
    return Finding(f"D={lean:+.2f}, peak t={int(sums.argmax()) - len(sums) // 2:+d}", lean, lean > LEANS)


def columns(subject: Subject) -> Finding:
    scores = subject.scores(1, 1)
    if scores.sizes["column"] < 6:  # noqa: PLR2004
        raise AttnscopeError(
            f"head(1,1) has {scores.sizes['column']} singular columns; columns 5 and 6 are asked"
        )
    peaks = scores.peak_offset.sel(range="near").values[4:6].tolist()
    refined = scores.peak_corrected.values[4:6]
    text = f"t={_peak(peaks[0])}, {_peak(peaks[1])} (between tokens {refined[0]:+.2f}, {refined[1]:+.2f})"
    return Finding(text, float(np.mean(peaks)), all(peak in {-3, -2} for peak in peaks))


def lobes(subject: Subject) -> Finding:
    """How much of the columns' cross-covariance is left in their sum: at the peak, and 20 to 40 tokens away."""
    scores = subject.scores(1, 1)
    place, number = subject.head(1, 1)
    values = reparametrize(*place.matrices(number, affine=False)).values
    parts = values[:, None] * (scores.covariance - scores.covariance.mean("offset")).values
    left = np.abs(parts.sum(0)) / np.abs(parts).sum(0)
    offset = scores.offset.values
    far = (np.abs(offset) >= LOBES[0]) & (np.abs(offset) <= LOBES[1])
    if not far.any():
        raise AttnscopeError(f"texts of {subject.length} tokens have no offsets near 30")
    text = f"left of the sum: {left[far].mean():.2f} at 20..40 tokens"
    at = float(scores.trace_peak_offset.sel(range="near"))
    if np.isfinite(at):
        text += f", {left[offset == at][0]:.2f} at t={at:+.0f}"
    return Finding(text, float(left[far].mean()))


def periodic_columns(subject: Subject) -> Finding:
    counts = subject.waves.periodic_columns.values
    by_layer = [layer.heads for layer in subject.evidence.layers]
    ends = np.cumsum(by_layer)
    known = {layer.site.index for layer in subject.evidence.bilinear}
    chosen: list[float] = []
    row = 0
    for layer, first, last in zip(subject.evidence.layers, np.r_[0, ends[:-1]], ends, strict=True):
        if layer.site.index in known:
            chosen += counts[row, : last - first][subject.directed[first:last]].tolist()
            row += 1
    if not chosen:
        raise AttnscopeError("no head leans to a side")
    low, middle, high = np.quantile(chosen, [0.25, 0.5, 0.75])
    return Finding(
        f"median {middle:g} (quartiles {low:g} and {high:g}) over {len(chosen)} directed heads",
        float(middle),
        bool(4 <= middle <= 12),  # noqa: PLR2004
    )


def _layers(values: np.ndarray) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def spectral_band(subject: Subject) -> Finding:
    query, key, inputs = (subject.peak_ratios.sel(side=side).values for side in ("query", "key", "X"))
    both = (query + key) / 2
    holds = bool(min(query[0], key[0]) > max(1.0, inputs[0]) and both[-1] < both[0])
    text = f"times noise, by layer: Q {_layers(query)}; K {_layers(key)}; X {_layers(inputs)}"
    return Finding(text, float(both[0]), holds)


def position_lost(subject: Subject) -> Finding:
    both = subject.peak_ratios.sel(side=["query", "key"]).mean("side").values
    if len(both) < 2:  # noqa: PLR2004
        raise AttnscopeError("one layer only")
    at = int(np.diff(both).argmin())
    return Finding(f"peaks of Q and K fall most between layers {at + 1} and {at + 2}", at + 1)


def canonical(subject: Subject) -> Finding:
    counts = subject.correlations.strong_components.values.astype(int)
    null = float(np.max(subject.correlations.null_correlation))
    holds = bool((counts >= 5).all() and (counts <= 20).all() and counts[-1] <= counts[0])  # noqa: PLR2004
    note = "noise reaches 0.5 with so few tokens" if null >= 0.5 else ""  # noqa: PLR2004
    return Finding(
        f"by layer {' '.join(map(str, counts))}; noise up to {null:.3f}", int(counts[0]), holds, note
    )


def canonical_data(subject: Subject) -> Finding:
    tokens = subject.evidence.texts * subject.length
    return Finding(f"{subject.evidence.texts} x {subject.length} = {tokens:,} tokens", tokens)


def score_clusters(subject: Subject) -> Finding:
    """Two clusters of the offset traces of the scores before mask and softmax."""
    shares = subject.score_clusters.label_share.values  # layer, head, cluster
    members = np.nansum(shares[..., np.nansum(shares, (0, 1)).argmin()], 1)
    text = f"k=2, t=-{SCORE_BAND}..{SCORE_BAND}; heads of the smaller cluster by layer {_layers(members)}"
    return Finding(text, float(members.sum()))


def relearned(subject: Subject) -> Finding:
    """Only where positions were learned anew in the same run."""
    relearned = subject.study.results.get("relearned")
    if relearned is None:
        raise AttnscopeError("needs training: --relearn does it")
    loss = relearned.loss.values
    samples, spacers, steps = (relearned.attrs[name] for name in ("samples", "spacers", "steps"))
    made = f"{samples:,} samples, {spacers} unknown tokens, {steps:,} steps"
    return Finding(f"{made}; loss {loss[0]:.2f} to {loss[-1]:.2f}", samples)
