"""Controls under which a head's shift must vanish (docs/mathematics.md, Controls)."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.explanation.arrays.checks import head_arrays
from attnscope.explanation.arrays.correlation import cross_spectrum
from attnscope.explanation.arrays.decomposition import haar, reparametrize
from attnscope.explanation.arrays.phase_map import phase_map
from attnscope.support.arguments import Natural, validated
from attnscope.support.checks import shaped

_SHARE = {"units": "1"}


@validated
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
    r"""A head's shift, and what is left of it when its cause is taken away.

    What must vanish is the line at the head's own offset :math:`t`: ``coherence_at_offset``, the mean over the band
    of :math:`\gamma(f) \cos(\arg C + 2 \pi f t / T)` weighted by \|C\| (:math:`\gamma` the coherence), falls to about
    0. Coherence alone need not fall: in shuffled text a word still matches itself, at offset 0. Nor does a
    concentration of phases say much: where few frequencies carry the weight, some offset fits any phases.

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

    Raises
    ------
    AttnscopeError
        As `cross_spectrum`; also if the other head's W_K has another number of columns.
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
