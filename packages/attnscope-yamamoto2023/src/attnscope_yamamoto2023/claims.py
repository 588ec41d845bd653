"""The claims of Yamamoto and Matsuzaki (2023), tested on any model: the number, our criterion, and its null.

A claim **holds** if the number meets the criterion and its null hardly ever does as well (p <= 0.05). The paper names
no criteria: they are ours. Two kinds of null are used: untrained copies of the model, which read the same texts, and
the model itself with one thing put in random order (the text's tokens, the heads, the shifts of columns).

p tests the size of the number, not the criterion. Where most untrained copies meet the criterion too, meeting it shows
nothing: the verdict is then "holds, as in untrained models", and `Verdict.copies` has their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from attnscope.detection.roles import control
from attnscope.explanation.analyses.position_content import position_content
from attnscope.explanation.analyses.shift import cross_correlation, cross_spectrum
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.study import Study
from attnscope.explanation.tables import position_table
from attnscope.support.errors import AttnscopeError
from attnscope_yamamoto2023.arrays.components import principal_components
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum
from attnscope_yamamoto2023.models import LEANS, LEVEL, LOBES, SHARP, Subject, in_periods
from attnscope_yamamoto2023.positions.waves import query_key_waves
from attnscope_yamamoto2023.rows import few_labels, words

if TYPE_CHECKING:
    import xarray as xr

LEAST_CHANCE = 0.05
HOLDS, AS_UNTRAINED, BY_CHANCE = "holds", "holds, as in untrained models", "as by chance"
FAILS, NOT_DEFINED = "does not hold", "not defined"
ORDERS = 199  # random orders of the nulls that need no other model
NEAR = 10  # largest offset of the profiles, tokens
FEW, MANY = 4, 12  # periodic columns of a positional head
FEW_DIMENSIONS = 12
LEADING = 20  # columns of figure 7


@dataclass(frozen=True)
class Measured:
    """A claim's number in one model."""

    value: float  # larger values support the claim
    text: str
    meets: bool  # whether it meets the criterion
    chance: float | None = None  # p of a null in the same model; None: untrained copies, or a test of its own


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and how to test it."""

    name: str
    place: str
    statement: str
    criterion: str
    null: str
    measure: Callable[[Subject], Measured]


def head_profiles(subject: Subject) -> Float[np.ndarray, "head offset"]:
    """Share of each head's weight at the offsets -10..10, mean over texts; layers follow each other."""
    return np.concatenate([np.mean(layer.band_sums, 0) for layer in subject.evidence.layers]) / subject.length


def _neighbours(subject: Subject) -> Measured:
    profiles = head_profiles(subject)
    left, right = (float(profiles[:, NEAR + side].max()) for side in (-1, 1))
    text = f"most weight of a head on the token before {left:.2f}, on the next {right:.2f}"
    return Measured(min(left, right), text, min(left, right) >= SHARP)


def _soft_heads(subject: Subject) -> Measured:
    profiles = head_profiles(subject)
    soft = profiles[profiles.max(1) < SHARP]
    lean = soft[:, NEAR + 1 :].sum(1) - soft[:, :NEAR].sum(1)  # share of the weight to the right, minus to the left
    left, right = (int((side > LEANS).sum()) for side in (-lean, lean))
    most = min((float(side.max()) for side in (-lean, lean)), default=0.0) if len(lean) else 0.0
    return Measured(most, f"{left} soft heads to the left, {right} to the right", min(left, right) > 0)


def _same_in_all_texts(subject: Subject) -> Measured:
    found = few_labels(subject)
    text = f"{float(found.number):.0f}% of the heads have one or two labels over {subject.evidence.texts} texts"
    return Measured(float(found.number), text, bool(found.holds))


def _peak_of_table(subject: Subject) -> Measured:
    mean, noise = subject.spectrum["mean"].values, float(subject.spectrum.null_mean)
    rows = len(subject.table.rows)
    is_peak = np.r_[False, (mean[1:-1] >= mean[:-2]) & (mean[1:-1] >= mean[2:]), False] & in_periods(rows)
    if not is_peak.any():
        near = in_periods(rows)
        return Measured(0.0, f"no peak; at most {mean[near].max() / noise:.1f} x noise", meets=False)
    best = int(np.where(is_peak, mean, 0.0).argmax())
    high = float(mean[best] / noise)
    text = f"{best} cycles per {rows} (period {rows / best:.1f} tokens), {high:.1f} x noise"
    return Measured(high, text, high > 1)


def _no_peak_in_words(subject: Subject) -> Measured:
    found = words(subject)
    spectrum = amplitude_spectrum(subject.table.rows, detrend="linear")
    passing = int((spectrum.fisher_p <= LEVEL / len(spectrum.column)).sum())
    columns = len(spectrum.column)
    text = f"{int(found.number)} columns of the words pass, {passing} of {columns} columns of the position table do"
    return Measured(-float(found.number), text, bool(found.holds) and passing > 0)


def _few_dimensions(subject: Subject) -> Measured:
    share = principal_components(subject.table.rows).cumulative_share.values
    four, twelve = (float(share[min(dims, len(share)) - 1]) for dims in (FEW, FEW_DIMENSIONS))
    text = f"4 dimensions have {four:.1%} of the variance, 12 have {twelve:.1%}"
    return Measured(twelve, text, twelve >= 0.8)  # noqa: PLR2004


def _directed(subject: Subject) -> dict[tuple[int, int], int]:
    """Heads with bilinear scores that attend mainly to one side, and the offset with most of their weight."""
    offsets = head_profiles(subject).argmax(1) - NEAR
    bilinear = {layer.site.index for layer in subject.evidence.bilinear}
    every = [(layer.site.index, head) for layer in subject.evidence.layers for head in range(layer.heads)]
    directed = zip(every, subject.directed, offsets, strict=True)
    heads = {place: int(offset) for place, is_directed, offset in directed if is_directed and place[0] in bilinear}
    if not heads:
        raise AttnscopeError("no head attends mainly to one side")
    return heads


def _periodic_columns(subject: Subject) -> Measured:
    waves = query_key_waves(subject.study, permutations=19)
    heads = [*_directed(subject)]
    counts = [int(waves.periodic_columns.sel(layer=layer, head=head)) for layer, head in heads]
    null = np.median([waves.null_periodic_columns.sel(layer=layer, head=head) for layer, head in heads], 0)
    low, middle, high = np.quantile(counts, [0.25, 0.5, 0.75])
    text = f"median {middle:g} (quartiles {low:g} and {high:g}) over {len(heads)} directed heads, at most {max(counts)}"
    return Measured(float(middle), text, bool(FEW <= middle <= MANY), _chance(null >= middle))


def _peak_in_queries(subject: Subject) -> Measured:
    query, key, inputs = (subject.peak_ratios.sel(side=side).values[0] for side in ("query", "key", "X"))
    text = f"times noise in the first layer: Q {query:.1f}, K {key:.1f}, X {inputs:.1f}"
    return Measured(float(min(query, key)), text, bool(min(query, key) > 1 >= inputs))


def _fades(subject: Subject) -> Measured:
    both = subject.peak_ratios.sel(side=["query", "key"]).mean("side").values
    text = f"Q and K, times noise, by layer: {' '.join(f'{one:.1f}' for one in both)}"
    return Measured(float(both[0] - both[-1]), text, bool(both[0] > max(1, both[-1])))


def _less_position(subject: Subject) -> Measured:
    by_layer = position_content(subject.study).position_share.median("head").values
    text = (
        f"share of the scores that position explains, by layer: {' '.join(f'{one:.2f}' for one in by_layer)}".replace(
            "-", "−"
        )
    )
    return Measured(float(by_layer[0] - by_layer[-1]), text, bool(by_layer[-1] < by_layer[0]))


def _shift_is_offset(subject: Subject) -> Measured:
    offsets = cross_spectrum(subject.study).band_offset
    return _same_offset(subject, offsets)


def _sum_is_offset(subject: Subject) -> Measured:
    peaks = cross_correlation(subject.study).trace_peak_offset.sel(range="near", drop=True)
    return _same_offset(subject, peaks)


def _same_offset(subject: Subject, estimates: xr.DataArray) -> Measured:
    """In how many directed heads an estimate is the offset with most weight; the null gives it to other heads."""
    heads = _directed(subject)
    weights = np.array([*heads.values()])
    of_heads = np.array([float(estimates.sel(layer=layer, head=head)) for layer, head in heads])
    agree = int((np.round(of_heads) == weights).sum())
    random = np.random.default_rng(subject.seed)
    others = np.array([(np.round(random.permutation(of_heads)) == weights).sum() for _ in range(ORDERS)])
    text = f"the estimate is the offset with most weight in {agree} of {len(heads)} directed heads"
    return Measured(agree / len(heads), text, agree > len(heads) / 2, _chance(others >= agree))


def _lobes_cancel(subject: Subject) -> Measured:
    random, differences, nulls = np.random.default_rng(subject.seed), list[float](), list[list[float]]()
    for layer, head in _directed(subject):
        place = subject.evidence.layer(layer)
        scores = subject.correlation(place, head)
        values = reparametrize(*place.matrices(head, affine=False)).values
        parts = values[:, None] * (scores.covariance - scores.covariance.mean("offset")).values
        offset = scores.offset.values
        far = (np.abs(offset) >= LOBES[0]) & (np.abs(offset) <= LOBES[1])
        if not far.any():
            raise AttnscopeError(f"texts of {subject.length} tokens have no offsets near 30")
        differences.append(_peak_minus_far(parts, offset, far))
        shifts = random.integers(len(offset), size=(99, len(parts)))
        moved = (np.stack([np.roll(part, by) for part, by in zip(parts, of, strict=True)]) for of in shifts)
        nulls.append([_peak_minus_far(others, offset, far) for others in moved])
    value, null = float(np.median(differences)), np.median(nulls, 0)
    shifted = np.median(null)
    text = f"the sum keeps {value:.2f} more of its columns at the peak than far away, with random shifts {shifted:.2f}"
    return Measured(value, text, value > 0, _chance(null >= value))


def _peak_minus_far(
    parts: Float[np.ndarray, "column offset"], offset: np.ndarray, far: Bool[np.ndarray, " offset"]
) -> float:
    """Share of the columns' sizes that is left in their sum: at its highest point near 0, minus far from it."""
    left = np.abs(parts.sum(0)) / np.abs(parts).sum(0)
    near = np.abs(offset) <= NEAR
    return float(left[near][parts.sum(0)[near].argmax()] - left[far].mean())


def _solitary_waves(subject: Subject) -> Measured:
    every = [(layer.site.index, head) for layer in subject.evidence.layers for head in range(layer.heads)]
    share = dict(zip(every, head_profiles(subject).max(1), strict=True))
    heads = {place: offset for place, offset in _directed(subject).items() if share[place] >= SHARP}
    if not heads:
        raise AttnscopeError("no head has 0.3 of its weight at one offset")
    spikes = 0
    for (layer, head), offset in heads.items():
        columns = subject.correlation(subject.evidence.layer(layer), head).isel(column=slice(LEADING))
        at = columns.peak_offset.sel(range="near").values == offset
        spikes += bool((at & columns.is_spike.values & columns.peak_clear.sel(range="near").values).any())
    text = f"{spikes} of {len(heads)} sharp heads have such a column"
    return Measured(spikes / len(heads), text, spikes > len(heads) / 2)


def _chance(as_good: Bool[np.ndarray, " draw"]) -> float:
    return float((1 + as_good.sum()) / (1 + as_good.size))


_COPIES, _ORDER, _HEADS = "untrained copies", "the text's tokens in random order", "the estimates of other heads"
CLAIMS = (
    Claim(
        "neighbours",
        "3.1, figure 2",
        "Some heads attend strongly to the token before, others to the next one",
        "0.3 of the weight of a head or more, on either side",
        _COPIES,
        _neighbours,
    ),
    Claim(
        "soft",
        "3.1, figure 2",
        "Some heads lean softly to the left, others to the right",
        "a head on either side with less than 0.3 at each offset, and 0.2 more on one side",
        _COPIES,
        _soft_heads,
    ),
    Claim(
        "texts",
        "3.1, figure 1",
        "The direction of most heads does not depend on the text",
        "90% of heads have one or two of six labels",
        _COPIES,
        _same_in_all_texts,
    ),
    Claim(
        "table",
        "3.2, figure 3",
        "The position table has waves of about 10 tokens",
        "a peak at periods of 8.5 to 12.8 tokens, above white noise",
        _COPIES,
        _peak_of_table,
    ),
    Claim(
        "words",
        "3.2, figure 3",
        "The word embeddings have no such waves",
        "no column passes Fisher's test (0.001, corrected), columns of the position table do",
        "the test's own",
        _no_peak_in_words,
    ),
    Claim(
        "columns",
        "3.3, figure 4",
        "In positional heads 4 to 12 columns of queries and keys are waves",
        "median of 4 to 12",
        _ORDER,
        _periodic_columns,
    ),
    Claim(
        "queries",
        "3.3, figure 5",
        "Queries and keys have that peak, hidden states do not",
        "in the first layer Q and K above noise, X not",
        _COPIES,
        _peak_in_queries,
    ),
    Claim(
        "fades",
        "3.3, figure 5",
        "The peak fades from layer to layer",
        "above noise in the first layer, and less in the last",
        _COPIES,
        _fades,
    ),
    Claim(
        "less",
        "section 3.3",
        "Upper layers depend less on position",
        "position explains less of the scores in the last layer than in the first",
        _COPIES,
        _less_position,
    ),
    Claim(
        "shift",
        "3.4, figure 6",
        "The phase shift between queries and keys, in tokens, is where the head attends",
        "in more than half of the directed heads",
        _HEADS,
        _shift_is_offset,
    ),
    Claim(
        "sum",
        "3.5, figure 7",
        "The weighted sum of cross-covariances peaks where the head attends",
        "in more than half of the directed heads",
        _HEADS,
        _sum_is_offset,
    ),
    Claim(
        "cancel",
        "3.5, figure 7",
        "Columns add up at the peak and cancel about 30 tokens away",
        "more is left at the peak",
        "each column moved by a random number of tokens",
        _lobes_cancel,
    ),
    Claim(
        "solitary",
        "3.5, figure 7",
        "Sharp heads also have columns that peak at one offset alone",
        "in more than half of the sharp heads",
        "white noise (4 standard deviations)",
        _solitary_waves,
    ),
    Claim(
        "dimensions",
        "B, figure 9",
        "A dozen dimensions carry the positions",
        "12 dimensions have 80% of the table's variance or more",
        _COPIES,
        _few_dimensions,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A claim on one model."""

    claim: Claim
    verdict: str  # HOLDS, AS_UNTRAINED, BY_CHANCE, FAILS or NOT_DEFINED
    text: str
    chance: float | None
    copies: str = ""  # untrained copies that meet the criterion


def claims(study: Study, *, copies: int = 19) -> list[Verdict]:
    """Test each claim of the paper on a model with a position table.

    Parameters
    ----------
    study
        A model and its texts, from `attnscope.explanation.study.study`.
    copies
        Untrained copies that read the same texts. With fewer than 19 no claim that needs them can hold.

    Raises
    ------
    AttnscopeError
        If the model has no position table.

    Examples
    --------
    >>> from attnscope.explanation.study import study
    >>> found = {each.claim.name: each for each in claims(study("bundled", limit=2), copies=1)}
    >>> found["columns"].verdict, found["columns"].text
    ('does not hold', 'median 0 ...')
    """
    position_table(study.model)  # raises with the model's own scheme
    own = _measured(study, CLAIMS)
    compared = [claim for claim in CLAIMS if claim.null == _COPIES]
    others: dict[str, list[Measured | str]] = {claim.name: [] for claim in CLAIMS}
    for seed in range(copies):
        with control(study.model, "initialised", seed):
            copy = Study(study.model, study.windows, band=study.band, seed=study.seed)
            for name, measured in _measured(copy, compared).items():
                others[name].append(measured)
    return [_verdict(claim, own[claim.name], others[claim.name]) for claim in CLAIMS]


def _measured(study: Study, tested: Sequence[Claim]) -> dict[str, Measured | str]:
    """Each claim's number, or the reason why it is not defined."""
    subject, found = Subject(study), dict[str, Measured | str]()
    for claim in tested:
        try:
            found[claim.name] = claim.measure(subject)
        except AttnscopeError as reason:
            found[claim.name] = str(reason)
    return found


def _verdict(claim: Claim, own: Measured | str, others: Sequence[Measured | str]) -> Verdict:
    if isinstance(own, str):
        return Verdict(claim, NOT_DEFINED, own, None)
    chance, copies, meeting = own.chance, "", 0
    if claim.null == _COPIES:
        values = [other for other in others if isinstance(other, Measured)]
        chance = (1 + sum(other.value >= own.value for other in values)) / (1 + len(others))
        meeting = sum(other.meets for other in values)
        copies = f"{meeting} of {len(others)}"
    if not own.meets:
        verdict = FAILS
    elif chance is not None and chance > LEAST_CHANCE:
        verdict = BY_CHANCE
    else:
        verdict = AS_UNTRAINED if 2 * meeting > len(others) else HOLDS
    return Verdict(claim, verdict, own.text, chance, copies)
