"""Heads made of waves, whose shift is known."""

from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True, eq=False)
class Planted:
    """X (position, width) and W_Q, W_K (width, r) of a head that looks at offset ``offset`` by waves."""

    inputs: np.ndarray
    query: np.ndarray
    key: np.ndarray
    frequencies: tuple[int, ...]  # cycles per text
    weights: tuple[float, ...]
    offset: int  # t0; keys are shifted by -t0 against queries

    @property
    def scoring(self):
        return self.query @ self.key.T

    @property
    def scores(self):
        return self.inputs @ self.scoring @ self.inputs.T


def waves(length, frequencies):
    """cos and sin of each frequency, (position, 2 * frequency): all cosines, then all sines."""
    angle = 2 * np.pi * np.outer(np.arange(length), frequencies) / length
    return np.hstack([np.cos(angle), np.sin(angle)])


@cache  # nothing writes to what it gives
def planted(
    *,
    width=96,
    r=16,
    length=256,
    frequencies=(13, 19, 26, 31, 37),
    weights=(2.0, 1.9, 1.8, 1.7, 1.6),
    offset=-2,
    noise=0.0,
    content=0.0,
    perturbation=0.0,
    seed=0,
):
    """X = waves in orthonormal planes B_c (+ noise, + words); W_A = sum_c w_c B_c^T M_c^T B_c (+ content match).

    Without noise, content and perturbation the scores are exactly sum_c w_c cos(w_c (j - i - offset)). Words are drawn
    from a vocabulary of 64 unit vectors in the directions that the waves leave free, and ``content`` is the weight at
    which equal words match. The perturbation is a random matrix of that spectral norm added to W_A, which is
    then cut back to rank r. Its factors are mixed by a random matrix, since only their product means anything.
    """
    rng = np.random.default_rng(seed)
    planes = 2 * len(frequencies)
    basis = np.linalg.qr(rng.normal(size=(width, r)))[0].T  # (r, width)
    wave, word = basis[:planes], basis[planes:]
    inputs = waves(length, frequencies) @ wave
    if content:
        vocabulary = rng.normal(size=(64, len(word)))
        vocabulary /= np.linalg.norm(vocabulary, axis=1, keepdims=True)
        inputs = inputs + vocabulary[rng.integers(0, 64, length)] @ word
    if noise:
        inputs = inputs + noise * rng.normal(size=inputs.shape)
    turn = np.diag(np.exp(2j * np.pi * np.array(frequencies) * offset / length))
    # a row (cos, sin) of the query at i against that of the key at j: cos(w (j - i)) turned by w t0
    turned = np.block([[turn.real, turn.imag], [-turn.imag, turn.real]])
    strength = np.tile(weights, 2)
    scoring = wave.T @ (strength[:, None] * turned) @ wave + content * word.T @ word
    if perturbation:
        error = rng.normal(size=(width, width))
        scoring = scoring + perturbation * error / np.linalg.norm(error, 2)
    left, values, right = np.linalg.svd(scoring)
    mix = rng.normal(size=(r, r))
    query = left[:, :r] * values[:r] @ mix
    key = right[:r].T @ np.linalg.inv(mix).T
    return Planted(inputs, query, key, tuple(frequencies), tuple(weights), offset)


def roberta(**changes):
    """Sizes of roberta-base, frequencies around 50."""
    sizes = {"width": 768, "r": 64, "length": 512, "frequencies": (27, 38, 44, 50, 57)}
    return planted(**sizes | changes)
