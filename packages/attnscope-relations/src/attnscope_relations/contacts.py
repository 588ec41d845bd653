"""How well heads rank the pairs of residues of a protein that are in contact, as Rao et al. (2021) score it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.statistics.discovery import significant
from attnscope.statistics.units import membership, units_in
from attnscope.store.arrays import by_layer
from attnscope_relations.summary import SIZE, by_unit, chances, halves_of, interval_of, of_best, share

if TYPE_CHECKING:
    from attnscope.read.windows import Window
    from attnscope_relations.data import LinkedText

#: The name of the relation of residues in contact.
RELATION = "contact"
SEPARATION = 6  # residues: pairs that are closer in the sequence are left out
#: Pairs that are ranked highest count as predictions: as many as residues, or this part of them.
CUTS = {"L": 1, "L/2": 2, "L/5": 5}

Weights = TypeVar("Weights", np.ndarray, Tensor)


def contact_features(weights: Weights) -> Weights:
    """Weights from residue to residue, symmetrised and corrected by their average product, as ESM uses them.

    Rao et al. (2021): :math:`s = a + a^T`, less the product of its sums over row and column, over its whole sum (the
    average product correction of Dunn et al. 2008).

    Parameters
    ----------
    weights
        ``(..., residue, residue)``, an array or a tensor, without special tokens: the maps of heads, for instance.

    Returns
    -------
    ndarray or Tensor
        ``(..., residue, residue)``, of the same kind.

    Examples
    --------
    What two residues have in common with all others is taken out: every row sums to 0.

    >>> import numpy as np
    >>> features = contact_features(np.array([[0.0, 0.6, 0.4], [0.2, 0.2, 0.6], [0.0, 0.6, 0.4]]))
    >>> features.round(2).tolist(), bool(abs(features.sum(-1)).max() < 1e-9)
    ([[-0.24, 0.32, -0.08], [0.32, -0.56, 0.24], [-0.08, 0.24, -0.16]], True)
    """
    both: Any = weights + weights.swapaxes(-1, -2)
    rows = both.sum(-1)[..., :, None]
    columns = both.sum(-2)[..., None, :]
    whole = both.sum((-1, -2))[..., None, None]
    return both - rows * columns / (whole + (whole == 0))


def is_protein(text: LinkedText) -> bool:
    """Whether the words of a text are residues, of a letter each, with contacts."""
    return any(link.relation == RELATION for link in text.links) and {end - start for start, end in text.words} == {1}


@dataclass(frozen=True, eq=False)
class Protein:
    """Which pairs of residues of a window count, and which are in contact."""

    length: int  # residues with coordinates
    tokens: tuple[tuple[int, ...], ...]  # of each residue
    first: np.ndarray  # ``(pair,)``: numbers of both residues of pairs that are `SEPARATION` or more apart
    second: np.ndarray
    contact: np.ndarray  # ``(pair,)``: 1 for contacts, else 0

    @classmethod
    def of(cls, text: LinkedText, window: Window) -> Protein | None:
        """The protein of a text; None for a text without contacts, or with fewer residues than a pair needs."""
        if not is_protein(text):
            return None
        letters = [at for at, character in enumerate(text.text) if not character.isspace()]
        residue = {at: number for number, at in enumerate(letters)}
        tokens: list[list[int]] = [[] for _ in letters]
        for token, ((start, end), special) in enumerate(zip(window.spans, window.special, strict=True)):
            for at in [] if special else [at for at in range(start, end) if at in residue]:
                tokens[residue[at]].append(token)
        observed = np.zeros(len(letters), dtype=bool)
        observed[[residue[start] for start, _ in text.words]] = True
        first, second = np.triu_indices(len(letters), SEPARATION)
        counts = observed[first] & observed[second]
        if not counts.any():
            return None
        contact = np.zeros((len(letters), len(letters)))
        for link in text.links:
            others = [residue[start] for start, _ in link.keys]
            contact[residue[link.query[0]], others] = contact[others, residue[link.query[0]]] = 1.0
        first, second = first[counts], second[counts]
        return cls(int(observed.sum()), tuple(map(tuple, tokens)), first, second, contact[first, second])

    def features(self, weights: Tensor) -> Tensor:
        """The features of each head, ``(head, residue, residue)``, from its weights ``(head, token, token)``."""
        member = weights.new_zeros(len(self.tokens), weights.shape[-1])
        for residue, tokens in enumerate(self.tokens):
            member[residue, list(tokens)] = 1.0
        return contact_features((member / member.sum(1, keepdim=True).clamp_min(1)) @ weights @ member.T)

    def at_pairs(self, features: Tensor) -> Tensor:
        """Features ``(head, residue, residue)`` of the pairs, ``(head, pair)``."""
        first, second = (torch.from_numpy(part).to(features.device) for part in (self.first, self.second))
        return features[:, first, second]

    def precision(self, scores: Tensor, other: Protein | None = None) -> np.ndarray:
        """Share of contacts among the pairs with the largest scores ``(head, pair)``, ``(cut, head)``.

        With another protein, its contacts in their place, put on this one from its start, over the pairs of both.
        """
        length, contact, fits = self.length, self.contact, np.ones(len(self.contact), dtype=bool)
        if other is not None:
            length = min(length, other.length)
            of_other = np.full((len(self.tokens),) * 2, np.nan)
            inside = other.second < len(self.tokens)
            of_other[other.first[inside], other.second[inside]] = other.contact[inside]
            contact = of_other[self.first, self.second]
            fits = np.isfinite(contact)
        counts = [min(max(1, length // part), int(fits.sum())) for part in CUTS.values()]
        ranked = scores[:, torch.from_numpy(fits).to(scores.device)].topk(max(counts), -1).indices.cpu().numpy()
        right = contact[fits][ranked]
        return np.stack([right[:, :number].sum(1) / max(1, number) for number in counts])


class Proteins:
    """The proteins of windows, and how well heads rank their contacts."""

    def __init__(self, texts: Sequence[LinkedText], windows: Sequence[Window], others: Sequence[Sequence[int]]) -> None:
        self.proteins = [Protein.of(text, window) for text, window in zip(texts, windows, strict=False)]
        self.others = others  # of each window those with which it exchanges its contacts
        self.longest = max([len(protein.tokens) for protein in self.proteins if protein is not None], default=0)

    def __bool__(self) -> bool:
        return self.longest > 0

    def ranked(self, weights: Tensor, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Precision of the heads of a layer for each window, and for contacts of others: ``(window, cut, head)`` each.

        Weights are ``(window, head, token, token)``. NaN where there is no protein.
        """
        precision = np.full((len(numbers), len(CUTS), weights.shape[1]), np.nan)
        exchanged = precision.copy()
        for at, number in enumerate(numbers):
            protein = self.proteins[number]
            if protein is None:
                continue
            scores = protein.at_pairs(protein.features(weights[at]))
            precision[at], exchanged[at] = protein.precision(scores), self.exchanged(number, scores)
        return precision, exchanged

    def exchanged(self, number: int, scores: Tensor) -> np.ndarray:
        """Mean precision ``(cut, head)`` for the contacts of others, put on the protein of a window; NaN without."""
        protein, others = self.proteins[number], [self.proteins[other] for other in self.others[number]]
        of_others = [protein.precision(scores, other) for other in others if protein is not None and other is not None]
        return np.mean(of_others, 0) if of_others else np.full((len(CUTS), len(scores)), np.nan)

    def variables(self, layers: Sequence[tuple[np.ndarray, np.ndarray]], numbers: Sequence[int]) -> dict[str, Any]:
        """What is stored of some windows: precision, and how many pairs and contacts there are by separation."""
        proteins = [self.proteins[number] for number in numbers]
        pairs = np.zeros((len(numbers), self.longest))
        contacts = np.zeros_like(pairs)
        for row, protein in enumerate(proteins):
            if protein is not None:
                separation = protein.second - protein.first
                np.add.at(pairs[row], separation, 1.0)
                np.add.at(contacts[row], separation, protein.contact)
        cells = ("window", "cut", "layer", "head")
        return {
            "window_precision": (cells, by_layer([precision for precision, _ in layers])),
            "window_precision_exchanged": (cells, by_layer([exchanged for _, exchanged in layers])),
            "window_residues": ("window", np.array([0 if one is None else one.length for one in proteins])),
            "window_pairs": (("window", "separation"), pairs),
            "window_contacts": (("window", "separation"), contacts),
            "cut": ("cut", np.array([*CUTS], dtype=object)),
        }


_WORDS = {
    "precision": "Share of contacts among the pairs of residues that a head ranks highest",
    "precision_exchanged": "The same share for contacts of other proteins",
    "precision_chance": "Share of contacts among all pairs",
    "precision_separation": "The same share for pairs ranked by how often their separation is a contact elsewhere",
    "precision_above": "Precision less that of the best control",
}


def precision_of(results: xr.Dataset, untrained: xr.Dataset | None, seed: int) -> dict[str, Any]:
    """Precision of every head over proteins, next to controls, as variables; nothing without contacts.

    Controls and tests are those of `summary_of`: contacts of other proteins, chance, and in place of the fixed offset
    the pairs ranked by their separation, whose shares of contacts are those of the other half of the proteins.
    """
    if "window_precision" not in results:
        return {}
    units, _ = units_in(results)
    member = membership(units)
    halves = halves_of(len(member), seed)
    precision = results.window_precision.transpose("window", "cut", "layer", "head")
    proteins = by_unit(member, results.window_residues > 0)
    sums = by_unit(member, precision)
    heads = sums.shape[-1]
    each = np.repeat(proteins[:, None], len(CUTS), 1)
    density = results.window_contacts.sum("separation") / results.window_pairs.sum("separation")
    exchanged = by_unit(member, results.window_precision_exchanged.transpose(*precision.dims))
    has_others = by_unit(member, results.window_precision_exchanged.notnull().any(precision.dims[1:]))
    by_separation = member @ np.nan_to_num(ranked_by_separation(results, member, halves))
    controls = {
        "separation": np.broadcast_to(by_separation[..., None, None], sums.shape),
        "exchanged": each[..., None, None] * share(exchanged, np.repeat(has_others[:, None], len(CUTS), 1)),
        "chance": np.broadcast_to(by_unit(member, density)[:, None, None, None], sums.shape),
    }
    whole = proteins.sum() * np.ones(len(CUTS))
    mean = share(sums.sum(0), whole)
    means = {name: share(np.nansum(values, 0), whole) for name, values in controls.items()}
    if not has_others.any():
        means["exchanged"] = np.full_like(mean, np.nan)
    above = mean - np.fmax.reduce([*means.values()])
    p = np.stack([chances(sums - values, each) for values in controls.values()])
    p = np.where(np.isnan(p).any(0), np.nan, p.max(0))
    intervals = [interval_of(sums[:, at], proteins, seed) for at in range(len(CUTS))]
    of_chosen, best = of_best(sums.reshape(*each.shape, -1), each, halves)
    chosen = [interval_of(of_chosen[:, at, None], proteins, seed) for at in range(len(CUTS))]
    cells = ("cut", "layer", "head")
    variables: dict[str, Any] = {
        "precision": (cells, mean),
        "precision_low": (cells, np.stack([low for _, low, _ in intervals])),
        "precision_high": (cells, np.stack([high for *_, high in intervals])),
        "precision_exchanged": (cells, means["exchanged"]),
        "precision_separation": ("cut", means["separation"][:, 0, 0]),
        "precision_chance": ("cut", means["chance"][:, 0, 0]),
        "precision_above": (cells, above),
        "precision_p": (cells, p),
        "precision_shown": (cells, significant(p) & (above >= SIZE)),
        "precision_tested": (cells, np.isfinite(p)),
        "precision_best_layer": ("cut", results.layer.values[best // heads]),
        "precision_best_head": ("cut", best % heads),
        "precision_held_out": ("cut", np.array([float(one[0]) for one, *_ in chosen])),
        "precision_held_out_low": ("cut", np.array([float(low[0]) for _, low, _ in chosen])),
        "precision_held_out_high": ("cut", np.array([float(high[0]) for *_, high in chosen])),
        "proteins": ((), int((results.window_residues > 0).sum())),
    }
    if untrained is not None:
        fresh = by_unit(member, untrained.window_precision.transpose(*precision.dims))
        of_fresh, _ = of_best(fresh.reshape(*each.shape, -1), each, halves)
        variables["precision_untrained"] = (cells, share(fresh.sum(0), whole))
        variables["precision_untrained_held_out"] = ("cut", share(of_fresh.sum(0), whole))
    for name, words in _WORDS.items():
        variables[name] = (*variables[name], {"long_name": words, "units": "share"})
    return variables


def ranked_by_separation(results: xr.Dataset, member: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Precision of pairs ranked by how often pairs of their separation are contacts in the other half.

    ``(window, cut)``. The last separation that counts gives a random part of its pairs, in expectation.
    """
    pairs, contacts = (results[f"window_{name}"].values for name in ("pairs", "contacts"))
    in_half = member.T @ halves > 0
    precision = np.full((len(pairs), len(CUTS)), np.nan)
    for half in (in_half, ~in_half):
        often = contacts[~half].sum(0) / np.maximum(1.0, pairs[~half].sum(0))
        order = np.argsort(-often, kind="stable")
        for row in np.flatnonzero(half & (pairs.sum(1) > 0)):
            ends = pairs[row, order].cumsum()
            for at, part in enumerate(CUTS.values()):
                wanted = min(max(1, int(results.window_residues[row]) // part), ends[-1])
                taken = np.clip(wanted - (ends - pairs[row, order]), 0, pairs[row, order])
                rate = contacts[row, order] / np.maximum(1.0, pairs[row, order])
                precision[row, at] = (taken * rate).sum() / wanted
    return precision
