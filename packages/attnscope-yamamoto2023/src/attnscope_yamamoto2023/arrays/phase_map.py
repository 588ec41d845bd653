"""Energy of the rotation's eigenvectors by frequency and angle, and controls of the shift.

See mathematics.md, Phase map, and Controls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from attnscope.explanation.arrays.checks import check_offsets, frequencies, head_arrays, in_band, over, weighted_median
from attnscope.explanation.arrays.correlation import common_shift, cross_spectrum, shifts_near
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.arrays.spectrum import Offsets, transform
from attnscope.options import Count, Natural
from attnscope.support.checked import checked
from attnscope.support.checks import shaped
from attnscope_yamamoto2023.arrays.rotation import Completion, haar, head_rotation

_REAL = 1e-8  # |sin angle| below which an eigenvalue is +1 or -1: its vector is real and has no direction


@checked
def phase_map(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    completion: Completion = "minimal",
    band: tuple[int, int] | None = None,
    offsets: tuple[int, int] | None = None,
    bins: Count = 64,
    seed: Natural = 0,
) -> xr.Dataset:
    r"""Energy of a head's rotation by frequency and angle, and the shift in tokens that it implies.

    For an eigenvector p of R with angle theta, :math:`g(f, \theta) = |\mathrm{DFT}(Q p)|_f`; that of K p is
    identical. A shift of keys against queries by Delta tokens puts the energy on the line :math:`\theta = 2
    \pi f \Delta / T`, that is :math:`\Delta = T \theta / (2 \pi f)`; the attention offset is -Delta.
    Eigenvectors of the eigenvalues 1 and -1 have no direction and are left out of the map and of the line,
    so a head without shift shows no line (`cross_spectrum` detects it).

    Parameters
    ----------
    inputs
        X of one text, shape (position, width).
    query_weight, key_weight
        W_Q and W_K, shapes (width, r).
    completion, seed
        Kind of completion, and seed, of the rotation; see `head_rotation`.
    band
        Band of frequencies for the numbers without dimension: the lowest and the highest, cycles per T tokens;
        everything from 3 by default.
    offsets
        Lowest and highest visible offset, tokens: the line is searched between them. All by default.
    bins
        Number of angle bins over -pi..pi.

    Returns
    -------
    xarray.Dataset
        ``energy`` over (``frequency``, ``angle``), the sum of g² in bins with the centres ``angle``
        (radians); over ``frequency``, ``real_energy``, that of the eigenvalues 1 and -1, and
        ``total_energy``, the sum of all, which for a full R is that of the DFT of Q. Without dimension, over
        the band: ``line_shift``, the Delta (tokens) of the line :math:`\theta = 2 \pi f \Delta / T`, angles wrapped,
        with the energy: the common shift of :math:`C(f) = \sum_p g^2 e^{j \theta}`, as in `cross_spectrum` (NaN where
        there is none); ``line_chance``, the chance that C of random phases
        concentrates as much; ``share_near``, the share of the energy within 1 token of the line; ``uniform_share``, the
        share of the circle that ``share_near`` covers, its value for uniform angles; ``least_cosine`` (see
        `RotationPlanes`). For ``thin``,
        energies are multiplied by the size of the eigenvalue.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, section 3.4 and figure 6; EMNLP 2023, equations 26 and
    27 and figure 10. Their equation 25 and theorem 1 print the sign of Delta reversed.
    """
    values, query_weight, key_weight = head_arrays(inputs, query_weight, key_weight)
    check_offsets(offsets)
    chosen = in_band(len(values), band)
    rotation = head_rotation(query_weight, key_weight, completion=completion, seed=seed)
    energy = np.abs(transform(values) @ rotation.vectors) ** 2 * rotation.moduli  # g(f, theta)²
    real = np.abs(np.sin(rotation.angles)) < _REAL
    parked = np.zeros(len(energy))
    if completion != "thin" and rotation.parked:  # outside the rotation's vectors, at angle 0
        parked = np.maximum((np.abs(transform(values)) ** 2).sum(1) - energy.sum(1), 0.0)
    edges = np.linspace(-np.pi, np.pi, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, rotation.angles[~real], side="left") - 1, 0, bins - 1)
    line = _line_of(energy[:, ~real], rotation.angles[~real], chosen, len(values), offsets)
    moving = energy[:, ~real] @ np.eye(bins)[bin_of]
    return xr.Dataset(
        over("frequency angle", energy=(moving, "energy by frequency and angle"))
        | over(
            "frequency",
            real_energy=(energy[:, real].sum(1) + parked, "energy of real eigenvalues"),
            total_energy=(energy.sum(1) + parked, "energy of all eigenvectors"),
        )
        | over("", **line, least_cosine=(rotation.least_cosine, "cosine of the largest angle between the spaces")),
        frequencies(len(energy), len(values))
        | over("angle", angle=((edges[1:] + edges[:-1]) / 2, "angle of the eigenvalue", "radians")),
        attrs={
            "positions": len(values),
            "completion": completion,
            "seed": seed,
            "band": [int(np.flatnonzero(chosen)[0]), int(np.flatnonzero(chosen)[-1])],
        },
    )


def completion_range(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    draws: int = 5,
    seed: int = 0,
    **where: Any,
) -> xr.Dataset:
    """The line of `phase_map` under the minimal and several random completions: how much the choice matters."""
    runs: dict[str, tuple[Completion, int]] = {"minimal": ("minimal", seed)}
    runs |= {f"haar {draw}": ("haar", seed + draw) for draw in range(draws)}
    lines = [
        phase_map(inputs, query_weight, key_weight, completion=completion, bins=1, seed=number, **where)
        for completion, number in runs.values()
    ]
    names = xr.Variable("completion", list(runs))
    return xr.concat([line[["line_shift", "share_near"]] for line in lines], names, combine_attrs="drop")


def _line_of(
    energy: Float[np.ndarray, "frequency vector"],
    angles: Float[np.ndarray, " vector"],
    chosen: Bool[np.ndarray, " frequency"],
    length: int,
    offsets: Offsets | None,
) -> dict[str, Any]:
    """Variables of the line with the energy."""
    cross = energy @ np.exp(1j * angles)
    common = common_shift(cross, chosen, length, offsets)
    shift = near = uniform = np.nan
    if common.is_peak:
        shift = weighted_median(shifts_near(cross, -common.offset, length)[chosen], np.abs(cross[chosen]))
        weight, token = energy[chosen], 2 * np.pi * np.flatnonzero(chosen) / length  # radians that a token turns
        apart = np.abs(np.angle(np.exp(1j * (angles - token[:, None] * shift))))
        near = float(weight[apart <= token[:, None]].sum() / weight.sum())
        uniform = float(weight.sum(1) @ np.minimum(token / np.pi, 1) / weight.sum())
    return {
        "line_shift": (shift, "shift of the line with the energy", "tokens"),
        "line_chance": (common.chance, "share of random phases that concentrate as much"),
        "share_near": (near, "share of energy within a token of it"),
        "uniform_share": (uniform, "the same if angles were spread evenly"),
    }


_SHARE = {"units": "1"}


@checked
def shift_controls(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    other_key: Float[np.ndarray, "other_width other_r"] | None = None,
    band: tuple[int, int] | None = None,
    offsets: tuple[int, int] | None = None,
    draws: Natural = 1,
    seed: Natural = 0,
) -> xr.Dataset:
    r"""A head's shift, with its cause and with its cause removed.

    Only the line at the head's own offset :math:`t` must vanish: ``coherence_at_offset``, the mean over the band
    of :math:`\gamma(f) \cos(\arg C + 2 \pi f t / T)` weighted by \|C\| (:math:`\gamma` the coherence), falls to about
    0. Coherence alone need not fall: in shuffled text a word still matches itself, at offset 0. Nor does a
    concentration of phases say much: where few frequencies have the weight, some offset fits any phases.

    Parameters
    ----------
    inputs, query_weight, key_weight, band, offsets
        As in `cross_spectrum`.
    other_key
        W_K of another head: its keys belong to other queries.
    draws, seed
        How many random draws of each of the two random controls, and their seed.

    Returns
    -------
    xarray.Dataset
        Over ``control``: ``head`` (unchanged); ``other key`` where one is given; ``permuted 0``, ..., the
        rows of X in a random order (queries and keys permuted together); ``random 0``, ..., random singular
        vectors with the head's singular values. Variables: ``band_offset``, ``shift_concentration``,
        ``coherence`` (weighted by the cross-amplitude over the band), ``coherence_at_offset`` and
        ``cross_amplitude`` (its sum over the band) of `cross_spectrum`, and ``line_shift``, ``share_near`` and
        ``uniform_share`` of `phase_map` (minimal completion).
    """
    values, query_weight, key_weight = head_arrays(inputs, query_weight, key_weight)
    if other_key is not None:
        other_key = shaped("other_key", other_key, "width, r")
    rng = np.random.default_rng(seed)
    cases = {"head": (values, query_weight, key_weight)}
    if other_key is not None:
        cases["other key"] = (values, query_weight, other_key)
    size = reparametrize(query_weight, key_weight).values
    for draw in range(draws):
        cases[f"permuted {draw}"] = (values[rng.permutation(len(values))], query_weight, key_weight)
    for draw in range(draws):
        query, key = (haar(len(weight), len(size), rng) for weight in (query_weight, key_weight))
        cases[f"random {draw}"] = (values, query * size, key)
    controls: list[xr.Dataset] = []
    offset = np.nan
    where: dict[str, Any] = {"band": band, "offsets": offsets}
    for case in cases.values():
        spectrum, angles = cross_spectrum(*case, **where), phase_map(*case, **where, bins=1)
        weight = np.where(spectrum.in_band, spectrum.cross_amplitude, 0.0)
        offset = float(spectrum.band_offset) if not controls else offset
        coherence = np.nan_to_num(spectrum.coherence.values)
        turned = spectrum.phase.values + 2 * np.pi * spectrum.frequency.values * offset / len(values)
        controls.append(
            xr.Dataset(
                {
                    "band_offset": spectrum.band_offset,
                    "shift_concentration": spectrum.shift_concentration,
                    "coherence": ((), _mean(coherence, weight), _SHARE),
                    "coherence_at_offset": ((), _mean(coherence * np.cos(turned), weight), _SHARE),
                    "cross_amplitude": ((), weight.sum(), _SHARE),
                    "line_shift": angles.line_shift,
                    "share_near": angles.share_near,
                    "uniform_share": angles.uniform_share,
                }
            )
        )
    return xr.concat(controls, xr.Variable("control", list(cases)), combine_attrs="drop")


def _mean(values: np.ndarray, weight: np.ndarray) -> float:
    """Weighted mean over frequencies; NaN without any weight."""
    total = weight.sum()
    return float(values @ weight / total) if total else np.nan
