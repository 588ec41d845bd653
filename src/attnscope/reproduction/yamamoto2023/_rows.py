"""What a model has in place of each published number: one function for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import AttentionCall, Need, measure
from attnscope.capture import Site
from attnscope.errors import AttnscopeError
from attnscope.mechanism import _over_heads as heads
from attnscope.mechanism.arrays import (
    amplitude_spectrum,
    cross_correlation,
    principal_components,
    reparametrize,
)
from attnscope.mechanism.evidence import (
    Evidence,
    Layer,
    PositionTable,
    Windows,
    batches,
    ids_of,
    read,
    score_traces,
    token_ids,
    watching_inputs,
    word_table,
)
from attnscope.statistics import RARE, cluster_profiles, direction, summarize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAPER_LENGTH = 512  # tokens; frequencies of the papers are cycles per so many
PEAK = (40, 60)  # "near f = 50"
FASTEST_PERIOD = 8  # tokens
SLOW_PERIOD = 51.2  # tokens: f = 10 at 512
CLUSTERS = 6
FLAT = ("self", "flat")  # kinds of heads that lean to no side
ABOVE_NULL, ABOVE_NULL_LISTED, LOWEST = 3.0, 1.5, 3
LEVEL = 1e-3
LOBES = (20, 40)  # tokens
SCORE_BAND = 30  # offsets of the GPT-2 profiles
FEW_LABELS = 2
NEXT_LEFT = (-3, -2, -1)  # tokens
SHARP = 0.3  # share of the weight at one offset
LEANS = 0.2  # direction, beyond which a head leans to a side

_TRIED = (
    ("all rows from 0", False, True),
    ("uncentred", True, False),
    ("all rows from 0, uncentred", False, False),
)


@dataclass(frozen=True)
class Ours:
    """What was found: in words, as a number, whether the published value holds (None: nothing to hold), remarks."""

    text: str
    number: float | int = float("nan")
    holds: bool | None = None
    note: str = ""


class Case:
    """A model, its texts and what the analyses found in them; each is made when a row first asks for it."""

    def __init__(
        self,
        model: PreTrainedModel,
        windows: Windows,
        evidence: Evidence,
        analyses: Mapping[str, xr.Dataset],
        seed: int,
    ) -> None:
        self.model, self.evidence, self.analyses, self.seed = model, evidence, analyses, seed
        self.windows = list(windows)
        self.length = evidence.length

    @property
    def table(self) -> PositionTable:
        """The first position table."""
        return self.evidence.tables[0]

    @cached_property
    def spectrum(self) -> xr.Dataset:
        """Of the position table."""
        return amplitude_spectrum(self.table.rows)

    @cached_property
    def clusters(self) -> xr.Dataset:
        """Labels of all heads in all texts, their shares and their centroids, as `summarize` gives them."""
        return self.analyses.get("figure_1") or clustered_heads(self.evidence, seed=self.seed)

    @cached_property
    def labels(self) -> tuple[Float[np.ndarray, "head cluster"], list[str], list[int]]:
        """Label shares of each head over the texts, the labels' names, and heads in each layer."""
        shares = self.clusters.label_share.values
        names = [str(name) for name in self.clusters.cluster.values]
        shares = shares.reshape(-1, len(names))
        return shares[np.isfinite(shares).all(1)], names, [layer.heads for layer in self.evidence.layers]

    @cached_property
    def score_clusters(self) -> xr.Dataset:
        """Two clusters of what all heads' scores sum up to along offsets, before mask and softmax."""
        return self.analyses.get("figure_15") or clustered_scores(self.model, self.windows, seed=self.seed)

    @property
    def directed(self) -> np.ndarray:
        """Which heads lean to a side, by their most frequent label."""
        shares, names, _ = self.labels
        return np.array([names[label].split(" ")[0] not in FLAT for label in shares.argmax(1)])

    @cached_property
    def waves(self) -> xr.Dataset:
        """Of all heads."""
        return self.analyses.get("waves") or heads.waves(self.evidence, permutations=0, seed=self.seed)

    @cached_property
    def correlations(self) -> xr.Dataset:
        """Canonical, by layer."""
        return self.analyses.get("position_cca") or heads.correlations_by_layer(self.evidence)

    @cached_property
    def peak_ratios(self) -> xr.DataArray:
        """Strongest amplitude near f = 50 over the 99% point of white noise, by layer and side."""
        spectra = self.analyses.get("spectra") or heads.spectra_by_layer(self.evidence)
        near = spectra.frequency[in_periods(self.length)]
        if not near.size:
            raise AttnscopeError(f"texts of {self.length} tokens have no frequency near 50 cycles per 512")
        return spectra.maximum.sel(frequency=near).max("frequency") / spectra.null_99

    def head(self, layer: int, head: int) -> tuple[Layer, int]:
        """The head that the papers call head(layer, head), both counted from 1."""
        layers = self.evidence.layers
        if layer > len(layers) or head > layers[layer - 1].heads:
            raise AttnscopeError(
                f"no head({layer},{head}) in {len(layers)} layers of {layers[-1].heads} heads"
            )
        return layers[layer - 1], head - 1

    def profile(self, layer: int, head: int) -> Float[np.ndarray, " offset"]:
        """tr_t of a head, mean over texts."""
        place, number = self.head(layer, head)
        return np.mean([sums[number] for sums in place.band_sums], 0)

    def scores(self, layer: int, head: int, *, paper: bool = True) -> xr.Dataset:
        """Cross-correlation of a head: the papers' (first text, no biases), or of what softmax sees (mean X)."""
        place, number = self.head(layer, head)
        if place.projections.form != "bilinear":
            raise AttnscopeError(
                f"the scores of head({layer},{head}) have the form {place.projections.form!r}, not bilinear in X"
            )
        return self.correlation(place, number, paper=paper)

    def correlation(self, place: Layer, number: int, *, paper: bool = True) -> xr.Dataset:
        """`scores` of a head that has bilinear scores."""
        if paper:
            states, (query, key) = place.sample, place.matrices(number, affine=False)
        else:
            states, query, key = heads.inputs_of(place, number)
        parts = reparametrize(query, key)
        mode = "paper" if paper else "centre_k"
        return cross_correlation(states @ parts.query, states @ parts.key, parts.values, mode=mode)


def clustered_heads(evidence: Evidence, *, seed: int = 0) -> xr.Dataset:
    """Six clusters of all heads' profiles over all texts, and how far they depend on the text: see `summarize`."""
    most = max(layer.heads for layer in evidence.layers)
    sums = np.full(
        (evidence.texts, len(evidence.layers), most, evidence.layers[0].band_sums[0].shape[-1]), np.nan
    )
    for row, layer in enumerate(evidence.layers):
        sums[:, row, : layer.heads] = np.stack(layer.band_sums)
    half = sums.shape[-1] // 2
    results = xr.Dataset(
        {
            "band_sum": (("text", "layer", "head", "offset"), sums),
            "length": ("text", np.full(evidence.texts, evidence.length)),
        },
        coords={"offset": np.arange(-half, half + 1)},
    )
    return summarize(results, clusters=CLUSTERS, seed=seed).assign_coords(
        layer=[layer.site.index for layer in evidence.layers], head=np.arange(most)
    )


@torch.no_grad()
def clustered_scores(model: PreTrainedModel, windows: Windows, *, seed: int = 0) -> xr.Dataset:
    """Two clusters of the offset traces of all heads' scores, which a causal mask does not cut (EMNLP, appendix C)."""
    ids = token_ids(windows)
    found: dict[int, list[np.ndarray]] = {}

    def observe(site: Site, call: AttentionCall, _: Tensor, __: Tensor) -> Tensor:
        output, _rows = measure(call, Need(band=1))
        if site.kind != "cross":
            found.setdefault(site.index, []).extend(score_traces(call, SCORE_BAND).cpu().numpy())
        return output

    with watching_inputs(model, observe):
        for _, batch in batches(ids):
            read(model, batch)
    traces = np.stack([np.stack(found[layer]) for layer in sorted(found)], 1) / ids.length
    clustering = cluster_profiles(traces.reshape(-1, traces.shape[-1]), clusters=2, seed=seed)
    labels = clustering.labels.reshape(len(ids), len(found), -1)
    names = [f"cluster {number + 1}" for number in range(len(clustering.names))]
    return xr.Dataset(
        {
            "label": (("text", "layer", "head"), labels),
            "label_share": (
                ("layer", "head", "cluster"),
                np.stack([(labels == number).mean(0) for number in range(len(names))], -1),
            ),
            "centroid": (("cluster", "offset"), clustering.centroids, {"units": "mean score"}),
        },
        coords={
            "cluster": np.array(names, dtype=object),
            "layer": sorted(found),
            "head": np.arange(labels.shape[2]),
            "offset": np.arange(-SCORE_BAND, SCORE_BAND + 1),
        },
    )


def in_periods(length: int, band: tuple[int, int] = PEAK) -> np.ndarray:
    """Which frequencies 0..length // 2 have the periods that the band has at 512 tokens.

    Examples
    --------
    >>> np.flatnonzero(in_periods(128)).tolist()
    [10, 11, 12, 13, 14, 15]
    """
    scaled = np.arange(length // 2 + 1) * PAPER_LENGTH / length
    return (scaled >= band[0]) & (scaled <= band[1])


def _components(dims: int, published: float, tolerance: float) -> Callable[[Case], Ours]:
    def share(table: np.ndarray, *, centred: bool = True) -> float:
        found = principal_components(table, centred=centred).cumulative_share.values
        return float(100 * found[min(dims, len(found)) - 1])

    def row(case: Case) -> Ours:
        found = share(case.table.rows)
        holds = abs(found - published) <= tolerance
        note = ""
        if not holds:
            whole = _all_rows(case)[: len(case.table.rows)]
            others = {
                name: share(case.table.rows if reserved else whole, centred=centred)
                for name, reserved, centred in _TRIED
            }
            matched = [name for name, value in others.items() if abs(value - published) <= tolerance]
            note = f"matches with: {', '.join(matched)}" if matched else ""
        return Ours(f"{found:.2f}%", found, holds, note)

    return row


def _all_rows(case: Case) -> Float[np.ndarray, "position width"]:
    place, _, name = case.table.name.rpartition(".")
    found = getattr(case.model.get_submodule(place), name)
    tensor = found if isinstance(found, Tensor) else found.weight
    return tensor.detach().double().cpu().numpy().reshape(-1, tensor.shape[-1])


def _subspace(case: Case) -> Ours:
    share = principal_components(case.table.rows).cumulative_share.values
    dims = [int(np.searchsorted(share, level) + 1) for level in (0.95, 0.99)]
    return Ours(f"{dims[0]} for 95% of the variance, {dims[1]} for 99%", dims[0])


def _spectrum_peak(case: Case) -> Ours:
    mean, null = case.spectrum["mean"].values, float(case.spectrum.null_mean)
    rows = len(case.table.rows)
    near = np.flatnonzero(in_periods(rows))
    if not near.size:
        raise AttnscopeError(f"a table of {rows} rows has no frequency near 50 cycles per 512")
    local = np.r_[False, (mean[1:-1] >= mean[:-2]) & (mean[1:-1] >= mean[2:]), False]
    local[:LOWEST] = False
    peaks = np.flatnonzero(local & (mean >= ABOVE_NULL_LISTED * null))
    best = int(near[mean[near].argmax()])
    high = mean[best] / null
    by_height = np.argsort(-case.spectrum.local_ratio.values[peaks])
    listed = ", ".join(map(str, peaks[by_height][:4])) or "none"
    text = f"{best} cycles per {rows} (period {rows / best:.1f}), {high:.1f} x noise; peaks: {listed}"
    return Ours(text, best, bool(local[best] and high >= ABOVE_NULL))


def _share_of_power(case: Case, chosen: Callable[[np.ndarray], np.ndarray]) -> float:
    """Share of the table's power, its mean aside, at periods that are chosen."""
    power, frequency = case.spectrum.power.values[1:], case.spectrum.frequency.values[1:]
    rows = len(case.table.rows)
    twice = power * np.where(2 * frequency == rows, 1.0, 2.0)  # negative frequencies
    return float(twice[chosen(rows / frequency)].sum() / twice.sum())


def _fast_energy(case: Case) -> Ours:
    found = 100 * _share_of_power(case, lambda period: period < FASTEST_PERIOD)
    return Ours(f"{found:.1f}% at shorter periods (white noise: 75%)", found, bool(found <= 10))  # noqa: PLR2004


def _words(case: Case) -> Ours:
    """Words of the texts one after the other, special tokens left out: those would make a wave of their own."""
    ids: list[int] = []
    for window in case.windows:
        inside = ids_of(window)
        special: Sequence[bool] = getattr(window, "special", [False] * len(inside))
        ids += [id_ for id_, is_special in zip(inside, special, strict=True) if not is_special]
    words = word_table(case.model)[ids[: len(case.table.rows)]]
    found = amplitude_spectrum(words, detrend="linear")
    passed = (found.fisher_p <= LEVEL / len(found.column)).values
    frequencies = found.peak_frequency.values[passed]
    where = f", most often at f = {np.bincount(frequencies).argmax()}" if passed.any() else ""
    return Ours(
        f"{int(passed.sum())} of {len(passed)} columns pass over {len(words)} words{where}",
        int(passed.sum()),
        not bool(passed.any()),
    )


def _clustered(case: Case) -> Ours:
    texts = case.evidence.texts
    _, names, by_layer = case.labels
    sizes = f"{texts} texts x {len(by_layer)} x {by_layer[0]}"
    offsets = case.evidence.layers[0].band_sums[0].shape[-1]
    count = texts * sum(by_layer)
    return Ours(f"{sizes} = {count:,} vectors, k={len(names)}, {offsets} offsets", count)


def _few_labels(case: Case) -> Ours:
    shares, _, by_layer = case.labels
    few = (shares >= RARE).sum(1) <= FEW_LABELS
    found = 100 * few.mean()
    layer = np.repeat(np.arange(len(by_layer)), by_layer) + 1
    head = np.concatenate([np.arange(count) for count in by_layer]) + 1
    others = [f"({a},{b})" for a, b, fine in zip(layer, head, few, strict=True) if not fine]
    note = f"more labels: {' '.join(others[:12])}{' ...' * (len(others) > 12)}" if others else ""  # noqa: PLR2004
    directed = case.directed
    of_directed = (
        f"; {100 * few[directed].mean():.0f}% of the {directed.sum()} directed" if directed.any() else ""
    )
    return Ours(f"{found:.0f}% of {len(few)} heads{of_directed}", found, bool(found >= 90), note)  # noqa: PLR2004


def _offset_of_weights(layer: int, head: int, wanted: int, least: float = 0.0) -> Callable[[Case], Ours]:
    def row(case: Case) -> Ours:
        sums = case.profile(layer, head)
        at = int(sums.argmax())
        offset = at - len(sums) // 2
        scores, seen = (_trace_peak(case, layer, head, paper=paper) for paper in (True, False))
        share = sums[at] / case.length
        text = f"t={offset:+d} ({share:.2f} of the weight); scores {_peak(scores)}, centred {_peak(seen)}"
        return Ours(text, offset, bool(offset == wanted and share >= least))

    return row


def _offset_of_scores(case: Case) -> Ours:
    sums = case.profile(1, 1)
    scores, seen = (_trace_peak(case, 1, 1, paper=paper) for paper in (True, False))
    weights = int(sums.argmax()) - len(sums) // 2
    holds = scores in NEXT_LEFT
    note = "" if holds or seen not in NEXT_LEFT else "only without the mean key, to which softmax is blind"
    return Ours(f"t={_peak(scores)}; centred {_peak(seen)}, weights {weights:+d}", scores, holds, note)


def _trace_peak(case: Case, layer: int, head: int, *, paper: bool) -> float:
    return float(case.scores(layer, head, paper=paper).trace_peak_offset.sel(range="near"))


def _peak(offset: float) -> str:
    return f"{offset:+.0f}" if np.isfinite(offset) else "none"


def _other_side(case: Case) -> Ours:
    sums = case.profile(7, 5)
    found = float(direction(sums))
    return Ours(f"D={found:+.2f}, peak t={int(sums.argmax()) - len(sums) // 2:+d}", found, found > LEANS)


def _columns(case: Case) -> Ours:
    found = case.scores(1, 1)
    if found.sizes["column"] < 6:  # noqa: PLR2004
        raise AttnscopeError(
            f"head(1,1) has {found.sizes['column']} singular columns; columns 5 and 6 are asked"
        )
    peaks = found.peak_offset.sel(range="near").values[4:6].tolist()
    refined = found.peak_corrected.values[4:6]
    text = f"t={_peak(peaks[0])}, {_peak(peaks[1])} (between tokens {refined[0]:+.2f}, {refined[1]:+.2f})"
    return Ours(text, float(np.mean(peaks)), all(peak in {-3, -2} for peak in peaks))


def _lobes(case: Case) -> Ours:
    """How much of the columns' cross-covariance is left in their sum: at the peak, and 20 to 40 tokens away."""
    found = case.scores(1, 1)
    place, number = case.head(1, 1)
    values = reparametrize(*place.matrices(number, affine=False)).values
    parts = values[:, None] * (found.covariance - found.covariance.mean("offset")).values
    left = np.abs(parts.sum(0)) / np.abs(parts).sum(0)
    offset = found.offset.values
    far = (np.abs(offset) >= LOBES[0]) & (np.abs(offset) <= LOBES[1])
    if not far.any():
        raise AttnscopeError(f"texts of {case.length} tokens have no offsets near 30")
    text = f"left of the sum: {left[far].mean():.2f} at 20..40 tokens"
    at = float(found.trace_peak_offset.sel(range="near"))
    if np.isfinite(at):
        text += f", {left[offset == at][0]:.2f} at t={at:+.0f}"
    return Ours(text, float(left[far].mean()))


def _periodic_columns(case: Case) -> Ours:
    counts = case.waves.periodic_columns.values
    by_layer = [layer.heads for layer in case.evidence.layers]
    ends = np.cumsum(by_layer)
    known = {layer.site.index for layer in case.evidence.bilinear}
    chosen: list[float] = []
    row = 0
    for layer, first, last in zip(case.evidence.layers, np.r_[0, ends[:-1]], ends, strict=True):
        if layer.site.index in known:
            chosen += counts[row, : last - first][case.directed[first:last]].tolist()
            row += 1
    if not chosen:
        raise AttnscopeError("no head leans to a side")
    low, middle, high = np.quantile(chosen, [0.25, 0.5, 0.75])
    return Ours(
        f"median {middle:g} (quartiles {low:g} and {high:g}) over {len(chosen)} directed heads",
        float(middle),
        bool(4 <= middle <= 12),  # noqa: PLR2004
    )


def _layers(values: np.ndarray) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def _spectral_band(case: Case) -> Ours:
    query, key, inputs = (case.peak_ratios.sel(side=side).values for side in ("query", "key", "X"))
    both = (query + key) / 2
    holds = bool(min(query[0], key[0]) > max(1.0, inputs[0]) and both[-1] < both[0])
    text = f"times noise, by layer: Q {_layers(query)}; K {_layers(key)}; X {_layers(inputs)}"
    return Ours(text, float(both[0]), holds)


def _position_lost(case: Case) -> Ours:
    both = case.peak_ratios.sel(side=["query", "key"]).mean("side").values
    if len(both) < 2:  # noqa: PLR2004
        raise AttnscopeError("one layer only")
    at = int(np.diff(both).argmin())
    return Ours(f"peaks of Q and K fall most between layers {at + 1} and {at + 2}", at + 1)


def _canonical(case: Case) -> Ours:
    counts = case.correlations.strong_components.values.astype(int)
    null = float(np.max(case.correlations.null_correlation))
    holds = bool((counts >= 5).all() and (counts <= 20).all() and counts[-1] <= counts[0])  # noqa: PLR2004
    note = "noise reaches 0.5 with so few tokens" if null >= 0.5 else ""  # noqa: PLR2004
    return Ours(f"by layer {' '.join(map(str, counts))}; noise up to {null:.3f}", int(counts[0]), holds, note)


def _canonical_data(case: Case) -> Ours:
    tokens = case.evidence.texts * case.length
    return Ours(f"{case.evidence.texts} x {case.length} = {tokens:,} tokens", tokens)


def _slow_waves(case: Case) -> Ours:
    found = 100 * _share_of_power(case, lambda period: period > SLOW_PERIOD)
    return Ours(f"{found:.1f}% of the energy at longer periods", found, bool(found >= 90))  # noqa: PLR2004


def _score_clusters(case: Case) -> Ours:
    """Two clusters of the offset traces of the scores before mask and softmax."""
    shares = case.score_clusters.label_share.values  # layer, head, cluster
    members = np.nansum(shares[..., np.nansum(shares, (0, 1)).argmin()], 1)
    text = f"k=2, t=-{SCORE_BAND}..{SCORE_BAND}; heads of the smaller cluster by layer {_layers(members)}"
    return Ours(text, float(members.sum()))


def _relearned(case: Case) -> Ours:
    """Only where positions were learned anew in the same run."""
    found = case.analyses.get("relearned")
    if found is None:
        raise AttnscopeError("needs training: --relearn does it")
    loss = found.loss.values
    samples, spacers, steps = (found.attrs[name] for name in ("samples", "spacers", "steps"))
    made = f"{samples:,} samples, {spacers} unknown tokens, {steps:,} steps"
    return Ours(f"{made}; loss {loss[0]:.2f} to {loss[-1]:.2f}", samples)


FINDERS: dict[int, Callable[[Case], Ours]] = {
    1: _components(4, 50.51, 0.01),
    2: _components(12, 92.23, 0.01),
    3: _subspace,
    4: _spectrum_peak,
    5: _fast_energy,
    6: _words,
    7: _clustered,
    8: _few_labels,
    9: _offset_of_weights(8, 9, -1, SHARP),
    10: _offset_of_weights(2, 3, 1),
    11: _offset_of_scores,
    12: _other_side,
    13: _columns,
    14: _lobes,
    15: _periodic_columns,
    16: _spectral_band,
    17: _position_lost,
    18: _canonical,
    19: _canonical_data,
    20: _slow_waves,
    21: _score_clusters,
    22: _relearned,
    24: lambda _: Ours("not in the weights"),
}
