"""Rows about the position table and about words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays import amplitude_spectrum, principal_components
from attnscope.mechanism.evidence import ids_of, word_table
from attnscope.reproduction.yamamoto2023._finding import Finding
from attnscope.reproduction.yamamoto2023._subject import (
    ABOVE_NULL,
    ABOVE_NULL_LISTED,
    FASTEST_PERIOD,
    LEVEL,
    LOWEST,
    SLOW_PERIOD,
    Subject,
    in_periods,
)

_TRIED = (
    ("all rows from 0", False, True),
    ("uncentred", True, False),
    ("all rows from 0, uncentred", False, False),
)


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
    """Share of the table's power, its mean aside, at periods that are chosen."""
    power, frequency = subject.spectrum.power.values[1:], subject.spectrum.frequency.values[1:]
    rows = len(subject.table.rows)
    twice = power * np.where(2 * frequency == rows, 1.0, 2.0)  # negative frequencies
    return float(twice[chosen(rows / frequency)].sum() / twice.sum())


def fast_energy(subject: Subject) -> Finding:
    percent = 100 * _share_of_power(subject, lambda period: period < FASTEST_PERIOD)
    return Finding(f"{percent:.1f}% at shorter periods (white noise: 75%)", percent, bool(percent <= 10))  # noqa: PLR2004


def words(subject: Subject) -> Finding:
    """Words of the texts one after the other, special tokens left out: those would make a wave of their own."""
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
