"""The published numbers, one record each: value, source, how to measure a model's own, and its chance.

Sources: ``S`` is Yamamoto and Matsuzaki (NLP 2023), ``E`` their paper of EMNLP 2023, ``K21`` Kobayashi et al. (EMNLP
2021), table 2. All but rows 20 and 21 are about roberta-base. Papers count layers and heads from 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.inputs import Windows, ids_of, read, token_ids
from attnscope.explanation.study import Study
from attnscope.explanation.tables import position_table, word_table
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.measure.labels import PEAK_SHARE, direction
from attnscope.statistics.agreement import RARE
from attnscope.support.errors import AttnscopeError
from attnscope_yamamoto2023.arrays.components import principal_components
from attnscope_yamamoto2023.arrays.phase_map import phase_map
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum, query_key_waves
from attnscope_yamamoto2023.models import (
    ABOVE_NULL,
    ABOVE_NULL_LISTED,
    FASTEST_PERIOD,
    FEW_LABELS,
    GPT2,
    LEANS,
    LEVEL,
    LOBES,
    LOWEST,
    NEXT_LEFT,
    PAPER_LENGTH,
    ROBERTA,
    SCORE_BAND,
    SHAPES,
    SHARP,
    SLOW_PERIOD,
    Finding,
    ShownHead,
    Subject,
    check_published,
    in_periods,
    is_shaped_like,
)
from attnscope_yamamoto2023.relearn import head_maps

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    of_directed = f"; {100 * few[directed].mean():.0f}% of the {directed.sum()} directed" if directed.any() else ""
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
    note = "" if holds or seen not in NEXT_LEFT else "only without the mean key, which does not change the weights"
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
        raise AttnscopeError(f"head(1,1) has {scores.sizes['column']} singular columns; columns 5 and 6 are needed")
    peaks = scores.peak_offset.sel(range="near").values[4:6].tolist()
    refined = scores.peak_corrected.values[4:6]
    text = f"t={_peak(peaks[0])}, {_peak(peaks[1])} (between tokens {refined[0]:+.2f}, {refined[1]:+.2f})"
    return Finding(text, float(np.mean(peaks)), all(peak in {-3, -2} for peak in peaks))


def lobes(subject: Subject) -> Finding:
    """The share of the columns' cross-covariance that remains in their sum: at the peak, and 20 to 40 tokens away."""
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
        raise AttnscopeError("no head attends mainly to one side")
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
    return Finding(f"by layer {' '.join(map(str, counts))}; noise up to {null:.3f}", int(counts[0]), holds, note)


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
    """Only if the same run relearned positions."""
    relearned = subject.study.result("relearned")
    if relearned is None:
        raise AttnscopeError("needs training: use --analyses relearned=2500")
    loss = relearned.loss.values
    samples, spacers, steps = (relearned.attrs[name] for name in ("samples", "spacers", "steps"))
    made = f"{samples:,} samples, {spacers} unknown tokens, {steps:,} steps"
    return Finding(f"{made}; loss {loss[0]:.2f} to {loss[-1]:.2f}", samples)


_TRIED = (("all rows from 0", False, True), ("uncentred", True, False), ("all rows from 0, uncentred", False, False))


def components(dims: int, published: float, tolerance: float) -> Callable[[Subject], Finding]:
    def share(table: np.ndarray, *, centred: bool = True) -> float:
        shares = principal_components(table, centred=centred).cumulative_share.values
        return float(100 * shares[min(dims, len(shares)) - 1])

    def row(subject: Subject) -> Finding:
        percent = share(subject.table.rows)
        holds = abs(percent - published) <= tolerance
        note = ""
        if not holds:
            whole = _all_rows(subject)[: len(subject.table.rows)]
            others = {
                name: share(subject.table.rows if reserved else whole, centred=centred)
                for name, reserved, centred in _TRIED
            }
            matched = [name for name, value in others.items() if abs(value - published) <= tolerance]
            note = f"matches with: {', '.join(matched)}" if matched else ""
        return Finding(f"{percent:.2f}%", percent, holds, note)

    return row


def _all_rows(subject: Subject) -> Float[np.ndarray, "position width"]:
    place, _, name = subject.table.name.rpartition(".")
    held = getattr(subject.model.get_submodule(place), name)
    tensor = held if isinstance(held, Tensor) else held.weight
    return tensor.detach().double().cpu().numpy().reshape(-1, tensor.shape[-1])


def subspace(subject: Subject) -> Finding:
    share = principal_components(subject.table.rows).cumulative_share.values
    dims = [int(np.searchsorted(share, level) + 1) for level in (0.95, 0.99)]
    return Finding(f"{dims[0]} for 95% of the variance, {dims[1]} for 99%", dims[0])


def spectrum_peak(subject: Subject) -> Finding:
    mean, null = subject.spectrum["mean"].values, float(subject.spectrum.null_mean)
    rows = len(subject.table.rows)
    near = np.flatnonzero(in_periods(rows))
    if not near.size:
        raise AttnscopeError(f"a table of {rows} rows has no frequency near 50 cycles per 512")
    local = np.r_[False, (mean[1:-1] >= mean[:-2]) & (mean[1:-1] >= mean[2:]), False]
    local[:LOWEST] = False
    peaks = np.flatnonzero(local & (mean >= ABOVE_NULL_LISTED * null))
    best = int(near[mean[near].argmax()])
    high = mean[best] / null
    by_height = np.argsort(-subject.spectrum.local_ratio.values[peaks])
    listed = ", ".join(map(str, peaks[by_height][:4])) or "none"
    text = f"{best} cycles per {rows} (period {rows / best:.1f}), {high:.1f} x noise; peaks: {listed}"
    return Finding(text, best, bool(local[best] and high >= ABOVE_NULL))


def _share_of_power(subject: Subject, chosen: Callable[[np.ndarray], np.ndarray]) -> float:
    """Share of the table's power, without its mean, at some periods."""
    power, frequency = subject.spectrum.power.values[1:], subject.spectrum.frequency.values[1:]
    rows = len(subject.table.rows)
    twice = power * np.where(2 * frequency == rows, 1.0, 2.0)  # negative frequencies
    return float(twice[chosen(rows / frequency)].sum() / twice.sum())


def fast_energy(subject: Subject) -> Finding:
    percent = 100 * _share_of_power(subject, lambda period: period < FASTEST_PERIOD)
    return Finding(f"{percent:.1f}% at shorter periods (white noise: 75%)", percent, bool(percent <= 10))  # noqa: PLR2004


def words(subject: Subject) -> Finding:
    """Words of the texts in order, without special tokens, which would make a wave of their own."""
    ids: list[int] = []
    for window in subject.windows:
        inside = ids_of(window)
        special: Sequence[bool] = getattr(window, "special", [False] * len(inside))
        ids += [id_ for id_, is_special in zip(inside, special, strict=True) if not is_special]
    words = word_table(subject.model)[ids[: len(subject.table.rows)]]
    spectrum = amplitude_spectrum(words, detrend="linear")
    passed = (spectrum.fisher_p <= LEVEL / len(spectrum.column)).values
    frequencies = spectrum.peak_frequency.values[passed]
    where = f", most often at f = {np.bincount(frequencies).argmax()}" if passed.any() else ""
    return Finding(
        f"{int(passed.sum())} of {len(passed)} columns pass over {len(words)} words{where}",
        int(passed.sum()),
        not bool(passed.any()),
    )


def slow_waves(subject: Subject) -> Finding:
    percent = 100 * _share_of_power(subject, lambda period: period > SLOW_PERIOD)
    return Finding(f"{percent:.1f}% of the energy at longer periods", percent, bool(percent >= 90))  # noqa: PLR2004


@dataclass(frozen=True)
class Row:
    """A published number."""

    number: int  # from 1
    quantity: str
    published: str
    source: str
    find: Callable[[Subject], Finding]  # measures the model's own value
    tolerance: str = ""  # our criterion for agreement; the papers name none
    # untrained models of the published shape that meet it (``benchmarks/paper_chance.py --models 12 --texts 3``)
    by_chance: str = ""
    model: str = ROBERTA  # the published model
    impossible: str = ""  # why it cannot be measured here


def not_in_the_weights(_: Subject) -> Finding:
    """A value that a checkpoint does not contain."""
    return Finding("not in the weights")


def not_run(_: Subject) -> Finding:
    """A value that is not computed here: `impossible` has the reason."""
    return Finding("")


ROWS: tuple[Row, ...] = (
    Row(
        1,
        "variance of the position table in 4 dimensions",
        "50.51%",
        "S app. B, E 4.1.2",
        components(4, 50.51, 0.01),
        "0.01 points",
        "0 of 12",
    ),
    Row(2, "the same in 12 dimensions", "92.23%", "S, E", components(12, 92.23, 0.01), "0.01 points", "0 of 12"),
    Row(3, "dimensions of positions", "about 15", "E 4.1", subspace),
    Row(4, "peak of the table's spectrum", "near f=50", "S 3.3", spectrum_peak, "in 40..60, 3 x noise", "0 of 12"),
    Row(
        5,
        "periods of the table's waves",
        "about 8 tokens or more",
        "E 4.3",
        fast_energy,
        "10% at shorter periods",
        "0 of 12",
    ),
    Row(6, "spectrum of words", "no peak", "S, E", words, "no column passes Fisher's g at 0.001", "12 of 12"),
    Row(7, "profiles clustered", "14,400, k=6, 21 offsets", "S 3.1, E 3", clustered),
    Row(
        8, "heads with one or two labels over the texts", "all", "E 3 (S: most)", few_labels, "90% of heads", "0 of 12"
    ),
    Row(
        9,
        "head(8,9)",
        "t=-1, sharp",
        "S 3.1, 3.5; E",
        offset_of_weights(8, 9, -1, SHARP),
        "largest weight at -1, and 0.3 or more",
        "0 of 12",
    ),
    Row(10, "head(2,3)", "t=+1", "S 3.4", offset_of_weights(2, 3, 1), "largest weight at +1", "2 of 12"),
    Row(11, "head(1,1)", "left; scores at t=-2", "S 3.4, 3.5", offset_of_scores, "scores at -3..-1", "2 of 12"),
    Row(
        12,
        "head(7,5)",
        "right, softly (inferred)",
        "S 3.1",
        other_side,
        "D above 0.2, as of rightward heads",
        "0 of 12",
    ),
    Row(13, "head(1,1), columns 5 and 6", "t=-2, -3", "E 4.3", columns, "both at -2 or -3", "0 of 12"),
    Row(14, "head(1,1), lobes that cancel", "near t=±30", "S 3.5", lobes),
    Row(
        15,
        "periodic columns of a positional head",
        "4 to 12",
        "S 3.3, app. B",
        periodic_columns,
        "median in 4..12",
        "0 of 12: no directed head",
    ),
    Row(
        16,
        "spectra of Q and K near f=50",
        "a peak, none in X, less in deeper layers",
        "S 3.3, E 4.2.2",
        spectral_band,
        "Q, K over noise and X in layer 1; last layer lower",
        "1 of 12",
    ),
    Row(17, "where position is lost", "layers 3 and 4 (cited)", "E 4.2.2", position_lost),
    Row(
        18,
        "components that X shares with positions",
        "5 to 20, fewer in deeper layers",
        "E 4.1.2",
        canonical,
        "5..20 correlations over 0.5",
        "0 of 12",
    ),
    Row(19, "tokens behind row 18", "200 x 512", "E", canonical_data),
    Row(
        20,
        "GPT-2: waves of its table",
        "f<10, periods over 51.2",
        "E app. C",
        slow_waves,
        "90% of the energy",
        "0 of 12",
        model=GPT2,
    ),
    Row(21, "GPT-2: profiles of scores clustered", "k=2, t=-30..30", "E app. C", score_clusters, model=GPT2),
    Row(22, "relearned positions", "8,645 samples, 3 unknown tokens", "E app. E", relearned),
    Row(
        23,
        "words for a mask after that",
        "article, adventure, exercise, essay, experiment",
        "E table 1",
        not_run,
        impossible="needs roberta-base with relearned positions, and the paper's sentence",
    ),
    Row(24, "BERT's training steps at 128 tokens", "90%", "S, E", not_in_the_weights),
    Row(
        25,
        "RoBERTa's mixing ratio: weights, norms, half residual, residual, LayerNorm",
        "95.8, 84.4, 47.9, 19.6, 16.2%",
        "K21",
        not_run,
        "2 points",
        impossible="explain does not measure norms of what is mixed",
    ),
    Row(
        26,
        "BERT's mixing ratio",
        "97.1, 85.2, 48.6, 22.3, 18.8%",
        "K21",
        not_run,
        "2 points",
        impossible="explain does not measure norms of what is mixed",
    ),
)


#: The heads of roberta-base that the papers show, (layer, head) from 1: the side they look to, and whether softly.
NAMED_HEADS = {(1, 1): (-1, True), (2, 3): (1, False), (7, 5): (1, True), (8, 9): (-1, False)}
FIGURE_6 = (25, 60)  # cycles per 512 tokens
GPT2_HEADS, SCORED = ((1, 4), (12, 1)), 300  # of EMNLP figure 14: heads from 1, tokens
COMPLETIONS = ("minimal", "lapack")
TOKENS = 15  # of the heat maps
COLUMNS = 6  # of queries and keys drawn as waves
CURVES = 20  # cross-correlations


def shown_heads(subject: Subject) -> list[ShownHead]:
    """The papers' four heads; in a model of another shape, its own heads with the clearest similar behaviour."""
    if is_shaped_like(subject.model, ROBERTA):
        return [ShownHead(f"{layer}.{head}", *subject.head(layer, head)) for layer, head in NAMED_HEADS]
    everyone = [(layer, head) for layer in subject.evidence.layers for head in range(layer.heads)]
    sums = np.concatenate([np.mean(layer.band_sums, 0) for layer in subject.evidence.layers]) / subject.length
    half = sums.shape[1] // 2
    sides = {-1: sums[:, :half], 1: sums[:, half + 1 :]}
    is_soft = np.maximum(sides[-1].max(1), sides[1].max(1)) < PEAK_SHARE
    heads: list[ShownHead] = []
    for (layer, head), (side, soft) in NAMED_HEADS.items():
        lean = sides[side].sum(1) - sides[-side].sum(1)
        score = np.where(is_soft, lean, 0.0) if soft else np.where(lean > 0, sides[side].max(1), 0.0)
        if score.max() > 0:
            heads.append(ShownHead(f"{layer}.{head}", *everyone[int(score.argmax())]))
    return heads


def stand_ins(subject: Subject, shown: Sequence[ShownHead]) -> str:
    """Which heads replace the papers' in a model of another shape than roberta-base, in one line; else empty."""
    if is_shaped_like(subject.model, ROBERTA):
        return ""
    places = {head.name: "{}.{}".format(*head.place) for head in shown}
    replaced = ", ".join(f"head({a},{b}): {places.get(f'{a}.{b}', 'none')}" for a, b in NAMED_HEADS)
    return f"the model is not shaped like {ROBERTA}; its own heads replace the papers' (layer.head, from 0): {replaced}"


def maps(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 2: weights among the first tokens of the first text."""
    first = subject.windows[0]
    ids = ids_of(first)
    tokens = getattr(first, "tokens", [str(id_) for id_ in ids])
    shown_maps = head_maps(subject.model, ids, tokens, [head.place for head in shown], rows=TOKENS)
    return shown_maps.assign_coords(named_head=("shown", _names(shown)))


def series(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 4: the most important columns of a head along the first text, as in the papers without biases."""
    chosen = _bilinear(shown)[0]
    if not is_shaped_like(subject.model, ROBERTA):
        counts = subject.waves.periodic_columns
        chosen = max(_bilinear(shown), key=lambda shown: int(counts.sel(layer=shown.layer.site.index, head=shown.head)))
    query, key = chosen.layer.matrices(chosen.head, affine=False)
    waves = query_key_waves(chosen.layer.sample, query, key, curves=COLUMNS, permutations=0)
    layer, head = chosen.place
    return waves.expand_dims(layer=[layer], head=[head]).assign_coords(named_head=chosen.name)


def phases(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 6: phase maps on the first text and without biases, by ``completion`` (``lapack`` is the papers' own)."""
    low, high = (max(1, round(edge * subject.length / PAPER_LENGTH)) for edge in FIGURE_6)

    def of_head(shown: ShownHead) -> xr.Dataset:
        query, key = shown.layer.matrices(shown.head, affine=False)
        by_completion = [
            phase_map(shown.layer.sample, query, key, completion=name, band=(low, high), seed=subject.seed)
            for name in COMPLETIONS
        ]
        names = xr.Variable("completion", list(COMPLETIONS))
        return xr.concat(by_completion, names, combine_attrs="drop_conflicts")

    return _stacked(shown, of_head)


def correlations(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """Figure 7: cross-correlations of the leading columns and their weighted sum, in the papers' form."""

    def of_head(shown: ShownHead) -> xr.Dataset:
        correlation = subject.correlation(shown.layer, shown.head).isel(column=slice(CURVES))
        return correlation.assign_coords(column=np.arange(correlation.sizes["column"]))

    return _stacked(shown, of_head)


@torch.no_grad()
def scores(subject: Subject, shown: Sequence[ShownHead]) -> xr.Dataset:
    """EMNLP figure 14: scores before mask and softmax of causal heads, over the first tokens of the first text."""
    named = (
        [ShownHead("", *subject.head(*name)) for name in GPT2_HEADS] if is_shaped_like(subject.model, GPT2) else shown
    )
    places = [head.place for head in named if head.layer.site.kind == "causal"]
    by_head: dict[tuple[int, int], np.ndarray] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        for layer, head in places:
            if layer == site.index:
                query = call.query[0, head, :SCORED].double()
                key = call.key[0, head // call.group, :SCORED].double()
                by_head[layer, head] = (call.scale * query @ key.T).float().cpu().numpy()
        return output_of(call)

    with watching(subject.model, observe):
        read(subject.model, token_ids(subject.windows[:1]))
    return xr.Dataset(
        {"score": (("shown", "query", "key"), np.stack([by_head[place] for place in places]))},
        coords={"layer": ("shown", [layer for layer, _ in places]), "head": ("shown", [head for _, head in places])},
    )


def _bilinear(shown: Sequence[ShownHead]) -> list[ShownHead]:
    bilinear = [head for head in shown if head.layer.projections.form == "bilinear"]
    if not bilinear:
        raise AttnscopeError("no head that the figures show has scores that are bilinear in X")
    return bilinear


def _stacked(shown: Sequence[ShownHead], of_head: Callable[[ShownHead], xr.Dataset]) -> xr.Dataset:
    """Heads one after the other along ``shown``."""
    there = _bilinear(shown)
    stacked = xr.concat(
        [of_head(head) for head in there],
        "shown",
        join="outer",
        combine_attrs="drop_conflicts",
        data_vars="all",
        coords="different",
        compat="equals",
    )
    layers, heads = zip(*[head.place for head in there], strict=True)
    return stacked.assign_coords(
        layer=("shown", list(layers)), head=("shown", list(heads)), named_head=("shown", _names(there))
    )


def _names(shown: Sequence[ShownHead]) -> np.ndarray:
    return np.array([head.name for head in shown], dtype=object)


KEY = (
    "S: Yamamoto and Matsuzaki (NLP 2023); E: their paper of EMNLP 2023; K21: Kobayashi et al. (EMNLP 2021). Layers "
    "and heads count from 1, as in the papers. agrees, differs: within our tolerance or not; by chance: the number of "
    "untrained models of that shape within it; same shape, other weights: not known to be the published weights; not "
    "comparable: another model; descriptive: no published value to compare with; not run: impossible for this model."
)
TABLE_COLUMNS = ("#", "quantity", "published", "source", "this model", "tolerance", "by chance", "verdict")


def paper_table(
    model: PreTrainedModel, windows: Windows, *, band: int = 10, seed: int = 0, published_as: str | None = None
) -> xr.Dataset:
    """Every published number, and that of a model."""
    position_table(model)  # raises with the model's own scheme
    check_published(published_as)
    return table_of(Subject(Study(model, list(windows), band=band, seed=seed)), published_as)


def table_of(subject: Subject, published_as: str | None = None) -> xr.Dataset:
    """`paper_table` of a prepared subject."""
    if published_as is None and not is_shaped_like(subject.model, ROBERTA):
        shown = {head.name: head for head in shown_heads(subject)}
        subject.stand_ins = {(layer, head): shown.get(f"{layer}.{head}") for layer, head in NAMED_HEADS}
    filled = [_filled(subject, row, published_as) for row in ROWS]
    texts = ("quantity", "published", "source", "ours", "tolerance", "by_chance", "verdict", "note")
    return xr.Dataset(
        {name: ("row", np.array([row[name] for row in filled], dtype=object)) for name in texts}
        | {"value": ("row", np.array([row["value"] for row in filled]))},
        coords={"row": [row.number for row in ROWS]},
        attrs={"model": type(subject.model).__name__, "texts": subject.evidence.texts, "length": subject.length},
    )


def paper_lines(table: xr.Dataset) -> list[tuple[str, ...]]:
    """Rows of a `paper_table`, to print under the headings `COLUMNS`."""
    lines: list[tuple[str, ...]] = []
    for row in table["row"].values:
        fields = {str(name): str(values.item()) for name, values in table.sel(row=row).data_vars.items()}
        verdict = f"{fields['verdict']}: {fields['note']}" if fields["note"] else fields["verdict"]
        cells = ("quantity", "published", "source", "ours", "tolerance", "by_chance")
        lines.append((str(row), *(fields[name] for name in cells), verdict))
    return lines


def _filled(subject: Subject, row: Row, published_as: str | None) -> dict[str, Any]:
    """One row; a row that this model does not admit has the verdict "not run" and the reason."""
    finding, reason = Finding(""), row.impossible
    if row.model == GPT2 and type(subject.model).__name__ not in SHAPES[GPT2].classes:
        reason = f"the model is not {GPT2}"
    if not reason:
        try:
            finding = row.find(subject)
            named = re.match(r"head\((\d+),(\d+)\)", row.quantity)
            if named:
                shown = subject.stand_ins.get((int(named[1]), int(named[2])))
                own = "" if shown is None else "head {}.{} here: ".format(*shown.place)
                finding = replace(finding, text=own + finding.text)
        except AttnscopeError as error:
            reason = str(error)
    return {
        "quantity": row.quantity,
        "published": row.published,
        "source": row.source,
        "tolerance": row.tolerance,
        "by_chance": row.by_chance,
        "ours": finding.text,
        "value": float(finding.number),
        "verdict": "not run" if reason else _verdict(subject, finding, row, published_as),
        "note": reason or finding.note,
    }


def _verdict(subject: Subject, finding: Finding, row: Row, published_as: str | None) -> str:
    if finding.holds is None:
        return "descriptive"
    if published_as == row.model:
        return "agrees" if finding.holds else "differs"
    return "same shape, other weights" if is_shaped_like(subject.model, row.model) else "not comparable"
