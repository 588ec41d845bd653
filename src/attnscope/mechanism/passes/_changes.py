"""Changes to words and positions: of token ids, of a table's rows, of one layer's X."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

RowChange = Callable[[np.ndarray], np.ndarray]

#: What each change does, by its name.
WORD_CHANGES = {
    "words-zero": "every word vector is zero",
    "words-repeated": "every word is the text's middle one",
    "words-shuffled": "the words of a text change places",
}
POSITION_CHANGES = {
    "positions-zero": "every position vector is zero",
    "positions-mean": "every position vector is their mean",
    "positions-permuted": "position ids change places",
    "positions-reversed": "position ids run backwards",
    "positions-shifted": "position ids begin later",
    "positions-band-removed": "a band of frequencies leaves the position vectors",
    "positions-components-removed": "their first principal components leave the position vectors",
    "positions-phases-random": "waves of the position vectors keep their sizes, not their phases",
}
CHANGES = WORD_CHANGES | POSITION_CHANGES


def remove_band(
    rows: Float[np.ndarray, "position width"], first: int, last: int
) -> Float[np.ndarray, "position width"]:
    """Remove frequencies ``first..last`` (cycles over the rows) from every column.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * 3 * np.arange(16) / 16)[:, None]
    >>> bool(np.allclose(remove_band(wave + 1, 2, 4), 1))
    True
    """
    spectrum = np.fft.rfft(rows, axis=0)
    spectrum[first : last + 1] = 0
    return np.fft.irfft(spectrum, len(rows), axis=0)


def remove_components(
    rows: Float[np.ndarray, "position width"], count: int
) -> Float[np.ndarray, "position width"]:
    """Project the first `count` principal components out of the rows; their mean stays.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.1], [-1.0, -0.1]])
    >>> bool(abs(remove_components(rows, 1)).max() < 0.1)
    True
    """
    mean = rows.mean(0)
    _, _, directions = np.linalg.svd(rows - mean, full_matrices=False)
    kept = directions[:count]
    return rows - (rows - mean) @ kept.T @ kept


def random_phases(
    rows: Float[np.ndarray, "position width"], seed: int
) -> Float[np.ndarray, "position width"]:
    """Give each column's every frequency a random phase; its amplitudes and its mean stay (Theiler et al. 1992).

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(16, 2))
    >>> other = random_phases(rows, 1)
    >>> bool(np.allclose(abs(np.fft.rfft(rows, axis=0)), abs(np.fft.rfft(other, axis=0))))
    True
    >>> bool(np.allclose(rows, other))
    False
    """
    spectrum = np.fft.rfft(rows, axis=0)
    phases = np.exp(2j * np.pi * np.random.default_rng(seed).random(spectrum.shape))
    phases[0] = 1
    if len(rows) % 2 == 0:
        phases[-1] = 1  # the highest frequency is real
    return np.fft.irfft(spectrum * phases, len(rows), axis=0)


@dataclass(frozen=True)
class Settings:
    """What each change needs to know, and the changes themselves.

    Attributes
    ----------
    shift
        Tokens by which ids are shifted.
    frequencies
        First and last frequency removed, cycles per window.
    components
        Principal components projected out.
    seed
        Seed of permutations and phases.

    Examples
    --------
    >>> settings = Settings(shift=1, frequencies=(2, 3), components=1, seed=0)
    >>> settings.rows("positions-reversed", np.array([[0.0], [1.0], [2.0], [3.0]]), 3).ravel()
    array([2., 1., 0.])
    """

    shift: int
    frequencies: tuple[int, int]
    components: int
    seed: int

    def order(self, name: str, length: int) -> np.ndarray | None:
        """The position id that each token gets, where ids change places."""
        if name == "positions-reversed":
            return np.arange(length)[::-1].copy()
        if name == "positions-permuted":
            return np.random.default_rng(self.seed).permutation(length)
        return None

    def rows(self, name: str, whole: np.ndarray, length: int) -> np.ndarray:
        """The rows that positions ``0..length-1`` read, changed."""
        rows = whole[:length]
        order = self.order(name, length)
        if order is not None:
            return rows[order]
        changes: dict[str, RowChange] = {
            "positions-zero": np.zeros_like,
            "positions-mean": lambda rows: np.broadcast_to(rows.mean(0), rows.shape).copy(),
            "positions-shifted": lambda _: whole[self.shift : self.shift + length],
            "positions-band-removed": lambda rows: remove_band(rows, *self.frequencies),
            "positions-components-removed": lambda rows: remove_components(rows, self.components),
            "positions-phases-random": lambda rows: random_phases(rows, self.seed),
        }
        return changes[name](rows)

    def words(self, name: str, ids: Tensor, special: Tensor) -> Tensor:
        """Other token ids; special tokens stay in their places."""
        places = self._places(name, special).to(ids.device)
        return ids.gather(1, places)

    def change_of_input(self, name: str, means: np.ndarray, special: Tensor) -> Callable[[Tensor], Tensor]:
        """The same changes on one layer's X, split into position means and the rest."""

        def change(states: Tensor) -> Tensor:
            position = torch.from_numpy(means).to(states)
            content = states - position
            if name == "words-zero":
                content = torch.zeros_like(content)
            elif name in WORD_CHANGES:
                places = self._places(name, special).to(states.device)
                content = content.gather(1, places[:, :, None].expand_as(content))
            else:
                position = torch.from_numpy(self.rows(name, means, len(means))).to(states)
            return position + content

        return change

    def _places(self, name: str, special: Tensor) -> Tensor:
        """Where each token's word comes from, ``(text, position)``."""
        texts, length = special.shape
        places = torch.arange(length).repeat(texts, 1)
        generator = np.random.default_rng(self.seed)
        for text in range(texts):
            words = torch.nonzero(~special[text])[:, 0]
            if name == "words-repeated" and len(words):
                places[text, words] = words[len(words) // 2]
            elif name == "words-shuffled":
                places[text, words] = words[torch.from_numpy(generator.permutation(len(words)))]
        return places
