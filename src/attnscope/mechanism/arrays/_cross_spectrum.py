"""By how many tokens keys are shifted against queries: the cross-spectrum of scores.

See docs/mathematics.md, Cross-spectrum.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope._arguments import typed
from attnscope.mechanism.arrays._checks import check_offsets, head_arrays, in_band, labelled, weighted_median
from attnscope.mechanism.arrays._common_shift import CommonShift, common_shift, shifts_near
from attnscope.mechanism.arrays._decomposition import reparametrize
from attnscope.mechanism.arrays._fourier import transform
from attnscope.mechanism.arrays._peaks import Offsets


@typed
def cross_spectrum(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    band: tuple[int, int] | None = None,
    offsets: tuple[int, int] | None = None,
) -> xr.Dataset:
    r"""Phase shift of a head's keys against its queries at each frequency, and the offset it amounts to.

    :math:`C(f) = \sum_j s_j \overline{\hat q_j(f)} \hat k_j(f)` is the DFT of the circular offset trace of
    the scores. Where keys are the queries shifted, :math:`k_i = q_{i+\Delta}`, :math:`\arg C(f) = 2 \pi f
    \Delta / T`, and the head looks at offset :math:`t = -\Delta`. It depends on W_Q W_K^T and X only, unlike
    the rotation R, which a choice of completion decides (see `head_rotation`).

    A phase gives the shift only up to multiples of T/f. Of these, the one nearest to a common shift is taken:
    that at which the trace, restricted to the band, is highest (nearest to 0 if several are as high). It is the
    trace of the scores before any mask; the common shift is looked for among `offsets`.

    Parameters
    ----------
    inputs
        X of one text, shape (position, width).
    query_weight, key_weight
        W_Q and W_K, shapes (width, r).
    band
        Band of frequencies that the numbers without dimension rest on: the lowest and the highest, cycles per T tokens;
        everything from 3 by default.
    offsets
        Lowest and highest offset that the head may look at, tokens; all by default.

    Returns
    -------
    xarray.Dataset
        Over ``frequency``: ``cross_amplitude``, \|C\|; ``phase``, arg C; ``shift``, Delta(f) (NaN where C or
        f is 0, and at T/2); ``offset``, -Delta(f); ``wrap_limit``, T/(2f), beyond which one frequency alone
        cannot tell; ``coherence`` in 0..1, :math:`|\sum_j \overline{\hat q_j} \hat k_j| / (\|\hat q\| \|\hat
        k\|)`; ``in_band``. Without dimension, over the band: ``band_offset``, the \|C\|-weighted median of
        the offsets, held within `offsets` (NaN where the trace goes on rising beyond them), and
        ``band_offset_spread``, the weighted median distance from it; ``band_offset_chance``, the share of 200 spectra
        of the same amplitudes and random phases whose trace is as high at one of the `offsets`;
        ``shift_concentration``, :math:`|\sum |C| e^{j(\arg C - 2 \pi f \Delta / T)}| / \sum |C|`, 1 where one
        shift explains all phases, and ``phase_concentration``, :math:`|\sum C| / \sum |C|`, 1 where one phase
        does (no shift in tokens, but horizontal bands in the map of R); ``slope_offset`` (tokens) and
        ``intercept`` (radians), from the line through the unwrapped phase, weighted by \|C\|, with standard
        errors ``slope_offset_error`` and ``intercept_error``. A constant shift means an intercept of 0 and a
        slope that equals ``band_offset``. NaN where undefined.

    Raises
    ------
    AttnscopeError
        If shapes do not fit, entries are not finite, there are fewer than 4 positions or the band is empty.

    References
    ----------
    Yamamoto and Matsuzaki (2023), EMNLP 2023, equations 15 and 24 to 27, for the phase shift.
    Their equation 25 prints its sign reversed.

    Examples
    --------
    Keys that lag their queries by 2 tokens match what stands 2 to the left:

    >>> frequency = np.array([5, 7, 11])
    >>> angle = 2 * np.pi * np.outer(np.arange(64), frequency) / 64
    >>> turn = np.diag(np.exp(2j * np.pi * frequency * 2 / 64))  # k_i = q_(i + 2)
    >>> key = np.block([[turn.real, turn.imag], [-turn.imag, turn.real]])
    >>> offsets = cross_spectrum(np.hstack([np.cos(angle), np.sin(angle)]), np.eye(6), key)
    >>> offsets.offset.sel(frequency=frequency).values.round(6).tolist(), round(float(offsets.band_offset), 6)
    ([-2.0, -2.0, -2.0], -2.0)
    """
    values, query_weight, key_weight = head_arrays(inputs, query_weight, key_weight)
    check_offsets(offsets)
    length = len(values)
    chosen = in_band(length, band)
    parts = reparametrize(query_weight, key_weight)
    query, key = transform(values @ parts.query), transform(values @ parts.key)
    together = np.linalg.norm(query, axis=1) * np.linalg.norm(key, axis=1)
    # the error of a transform of so many numbers, of queries and of keys: what is no larger has no phase
    rounding = (length * np.finfo(float).eps) ** 2 * together.max()
    alive = together > rounding
    cross = np.where(alive, (parts.values * query.conj() * key).sum(1), 0.0)
    coherence = np.abs((query.conj() * key).sum(1)) / np.where(alive, together, np.nan)
    frequency = np.arange(len(cross))
    common = common_shift(cross, chosen, length, offsets)
    shift = shifts_near(cross, -common.offset, length)
    cycles = f"cycles per {length} tokens"
    with np.errstate(divide="ignore"):
        limit = length / (2 * frequency)
    return xr.Dataset(
        {
            "cross_amplitude": labelled("frequency", np.abs(cross), "amplitude of the cross-spectrum"),
            "phase": labelled("frequency", np.angle(cross), "phase of the cross-spectrum", "radians"),
            "shift": labelled("frequency", shift, "shift of keys against queries", "tokens"),
            "offset": labelled("frequency", -shift, "offset that scores favour (key - query)", "tokens"),
            "wrap_limit": labelled("frequency", limit, "largest shift that one phase can tell", "tokens"),
            "coherence": labelled("frequency", np.minimum(coherence, 1.0), "coherence of queries and keys"),
            "in_band": labelled("frequency", chosen, "in the band"),
        }
        | {
            name: labelled("", value, long_name, units)
            for name, value, long_name, units in _over_band(
                cross[chosen], frequency[chosen], shift[chosen], length, common, offsets or (-length, length)
            )
        },
        coords={"frequency": labelled("frequency", frequency, "frequency", cycles)},
        attrs={"positions": length, "band": [int(frequency[chosen][0]), int(frequency[chosen][-1])]},
    )


def _over_band(
    cross: np.ndarray,
    frequency: np.ndarray,
    shift: np.ndarray,
    length: int,
    common: CommonShift,
    offsets: Offsets,
) -> list[tuple[str, float, str, str]]:
    weight = np.where(np.isfinite(shift), np.abs(cross), 0.0)
    total = weight.sum()
    middle = weighted_median(-shift, weight)
    spread = weighted_median(np.abs(-shift - middle), weight)
    straight = np.abs(
        (weight * np.exp(1j * (np.angle(cross) + 2 * np.pi * frequency * middle / length))).sum()
    )
    level = np.abs(cross.sum())
    (intercept, slope), (intercept_error, slope_error) = _line(
        frequency, np.where(np.isfinite(shift), 2 * np.pi * frequency * shift / length, 0.0), weight
    )
    tokens = length / (2 * np.pi)
    return [
        (
            "band_offset",
            float(np.clip(middle, *offsets)) if common.is_peak else np.nan,
            "weighted median of the offsets in the band",
            "tokens",
        ),
        ("band_offset_chance", common.chance, "share of random phases that concentrate as much", "1"),
        ("band_offset_spread", spread, "weighted median distance from it", "tokens"),
        ("shift_concentration", straight / total if total > 0 else np.nan, "agreement with one shift", "1"),
        ("phase_concentration", level / total if total > 0 else np.nan, "agreement with one phase", "1"),
        ("slope_offset", -slope * tokens, "offset from the slope of the phase", "tokens"),
        ("slope_offset_error", slope_error * tokens, "its standard error", "tokens"),
        ("intercept", intercept, "phase at frequency 0 of the line through the phases", "radians"),
        ("intercept_error", intercept_error, "its standard error", "radians"),
    ]


def _line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted line, (intercept, slope), and errors that do not trust the weights (sandwich)."""
    if (weight > 0).sum() < 3:  # noqa: PLR2004 a line through two points has no error
        return np.full(2, np.nan), np.full(2, np.nan)
    design = np.stack([np.ones(len(x)), x], 1)
    inverse = np.linalg.inv((design * weight[:, None]).T @ design)
    line = inverse @ (design.T @ (weight * y))
    # each point's own pull g on the line: the covariance is inverse (sum of g g^T) inverse (White 1980)
    pull = design * (weight * (y - design @ line))[:, None]
    return line, np.sqrt(np.diag(inverse @ (pull.T @ pull) @ inverse))
