"""All heads together for contacts: the logistic regression of Rao et al. (2021), and its weights as ESM reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels.full import attend_in_full
from attnscope.statistics.discovery import significant
from attnscope.statistics.units import LEAST, membership, numbered, units_in
from attnscope.store.arrays import of_layers
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope_relations.ablation import Head, cells_of, silenced, summarised
from attnscope_relations.contacts import CUTS, RELATION, ranked_by_separation
from attnscope_relations.summary import SIZE, chances, halves_of, interval_of
from attnscope_relations.together import FOLDS, folds

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope_relations.measure import RelationReader

#: Inverse strength of the L1 penalty (C of scikit-learn's LogisticRegression), as ESM has it.
STRENGTH = 0.15
_ROOM = 1 << 30  # bytes of features that are kept
_PAIRS = 200_000  # to which one regression is fitted, at most: a random choice

Features = Mapping[int, np.ndarray]  # of the protein of each window, ``(feature, pair)``: the heads of all layers
Fit = tuple[np.ndarray, float]  # coefficients ``(feature,)`` and intercept


def contacts_together(reader: RelationReader, results: xr.Dataset, precision: xr.DataArray) -> dict[str, Any]:
    """Precision of all heads together, by the regression of other proteins, and its weights, as variables.

    ``contact_shown``: significantly above pairs ranked by their separation, the contacts of other proteins, all pairs
    and, if it was measured, the regression of fresh weights (an intersection-union test), and by 0.1 or more.
    """
    units, _ = units_in(results)
    of_window, _ = numbered(units)
    seed = reader.settings["seed"]
    windows = _within_room(reader, of_window, seed)
    present = np.unique(of_window[windows])
    if len(present) < LEAST:
        if reader.ablate:
            reader.notes["ablation"] = f"No head was ablated: contacts are put together from {LEAST} proteins on."
        return {}
    if len(windows) < sum(protein is not None for protein in reader.proteins.proteins):
        reader.notes["contacts"] = (
            f"The regression of contacts is on {count(len(windows), 'protein')}: features of all take more than "
            f"{_ROOM >> 30} GiB."
        )
    of_unit = dict(zip(present.tolist(), folds(len(present), seed).tolist(), strict=True))
    fold = {number: of_unit[int(of_window[number])] for number in windows}
    features = gathered(reader, windows)
    fits = _fits(reader, features, fold, seed)
    scores = _scores(features, fold, fits)
    sums, proteins = _precision(reader, scores, of_window, present)
    separation = ranked_by_separation(results, membership(units), halves_of(int(of_window.max()) + 1, seed))
    controls = {
        "separation": _by_unit({number: separation[number] for number in windows}, of_window, present),
        "exchanged": _by_unit(
            {number: reader.proteins.exchanged(number, scores[number])[:, 0] for number in windows}, of_window, present
        ),
        "chance": _by_unit(
            {number: np.full(len(CUTS), _protein(reader, number).contact.mean()) for number in windows},
            of_window,
            present,
        ),
    }
    fresh = reader.with_fresh_weights(partial(gathered, reader, windows)) if reader.untrained else None
    if fresh is not None:
        of_fresh = _scores(fresh, fold, _fits(reader, fresh, fold, seed))
        controls["untrained"], _ = _precision(reader, of_fresh, of_window, present)
    each = np.repeat(proteins[:, None], len(CUTS), 1)
    differences = [(sums - values)[..., None, None] for values in controls.values()]
    p = np.max([chances(difference, each)[:, 0, 0] for difference in differences], 0)
    means = [interval_of(sums[:, at], proteins, seed) for at in range(len(CUTS))]
    mean = np.array([float(one[0]) for one in means])
    above = mean - np.max([values.sum(0) / proteins.sum() for values in controls.values()], 0)
    weights, bias = _fitted(reader, features, windows, seed)
    heads = [site.heads for site in reader.measured]
    variables: dict[str, Any] = {
        "contact_together": ("cut", mean, {"long_name": "Precision of all heads together", "units": "share"}),
        "contact_together_low": ("cut", np.array([float(one[1]) for one in means])),
        "contact_together_high": ("cut", np.array([float(one[2]) for one in means])),
        "contact_above": ("cut", above),
        "contact_p": ("cut", p),
        "contact_shown": ("cut", significant(p) & (above >= SIZE)),
        "contact_weight": (("layer", "head"), of_layers(weights, heads)),
        "contact_bias": bias,
    }
    if "untrained" in controls:
        variables["contact_untrained"] = ("cut", controls["untrained"].sum(0) / proteins.sum())
    if reader.ablate:
        at_length = precision.transpose("cut", "layer", "head").values[0]
        layer, head = np.unravel_index(np.nanargmax(at_length), at_length.shape)
        best = int(results.layer[layer]), int(head)
        ablated = _ablated(reader, results, best, scores, separation, fold, fits)
        variables |= {str(name): values for name, values in ablated.data_vars.items()}
    return variables


def _protein(reader: RelationReader, number: int) -> Any:
    """The protein of a window that has one."""
    return reader.proteins.proteins[number]


def _within_room(reader: RelationReader, of_window: np.ndarray, seed: int) -> list[int]:
    """The windows whose proteins are put together: all, or those of the first units in a random order."""
    heads = sum(site.heads for site in reader.measured)
    order = np.random.default_rng(seed).permutation(int(of_window.max()) + 1)
    windows: list[int] = []
    used = 0
    for number in sorted(range(len(of_window)), key=lambda number: (order[of_window[number]], number)):
        protein = reader.proteins.proteins[number]
        if protein is None:
            continue
        used += 4 * heads * len(protein.contact)
        if used > _ROOM and windows:
            break
        windows.append(number)
    return sorted(windows)


def gathered(reader: RelationReader, windows: Sequence[int], without: Head | None = None) -> dict[int, np.ndarray]:
    """The features of the pairs of some windows, in one pass over them; `without` the output of a head, if given."""
    features: dict[int, np.ndarray] = {}
    measured = {site.index for site in reader.measured}
    of_reader: Any = reader.windows
    for first in range(0, len(windows), reader.batch_size):
        numbers = windows[first : first + reader.batch_size]
        layers: list[list[np.ndarray]] = []

        def look(
            site: Site, call: AttentionCall, numbers: Sequence[int] = numbers, layers: list[list[np.ndarray]] = layers
        ) -> Tensor | None:
            if site.index not in measured:
                return None
            output, weights = attend_in_full(call)
            proteins = [_protein(reader, number) for number in numbers]
            layers.append(
                [protein.at_pairs(protein.features(one)).cpu().numpy() for protein, one in zip(proteins, weights)]  # noqa: B905 weights may have rows of padding
            )
            return silenced(site, output, without)

        reader.run(reader.read([of_reader[number] for number in numbers], numbers), look, numbers)
        features |= {number: np.concatenate([layer[at] for layer in layers]) for at, number in enumerate(numbers)}
    return features


def _fitted(reader: RelationReader, features: Features, windows: Sequence[int], seed: int) -> Fit:
    """Coefficients ``(feature,)`` and intercept of the regression for the proteins of some windows."""
    from sklearn.linear_model import LogisticRegression

    pairs = np.concatenate([features[number].T for number in windows])
    contact = np.concatenate([_protein(reader, number).contact for number in windows])
    if len(contact) > _PAIRS:
        chosen = np.random.default_rng(seed).choice(len(contact), _PAIRS, replace=False)
        pairs, contact = pairs[chosen], contact[chosen]
    if contact.min() == contact.max():
        return np.zeros(pairs.shape[1]), 0.0
    regression: Any = LogisticRegression(
        C=STRENGTH, l1_ratio=1.0, solver="liblinear", random_state=seed, tol=1e-6, max_iter=1000
    )
    regression.fit(pairs.astype(np.float64), contact)
    return regression.coef_[0], float(regression.intercept_[0])


def _fits(reader: RelationReader, features: Features, fold: Mapping[int, int], seed: int) -> list[Fit]:
    """The regression of the other folds, for each fold."""
    others = [[number for number in features if fold[number] != part] for part in range(FOLDS)]
    return [_fitted(reader, features, some, seed) for some in others]


def _scores(features: Features, fold: Mapping[int, int], fits: Sequence[Fit]) -> dict[int, Tensor]:
    """Log odds of the pairs of each protein, ``(1, pair)``, by the regression of the other folds."""
    scores: dict[int, Tensor] = {}
    for number, of_protein in features.items():
        weights, bias = fits[fold[number]]
        scores[number] = torch.from_numpy((weights @ of_protein + bias)[None])
    return scores


def _ablated(
    reader: RelationReader,
    results: xr.Dataset,
    best: Head,
    scores: Mapping[int, Tensor],
    separation: np.ndarray,
    fold: Mapping[int, int],
    fits: Sequence[Fit],
) -> xr.Dataset:
    """Precision at L of all heads together without the best one, and without others of its layer.

    The margin is the precision less that of pairs ranked by their separation. A head is taken out by an
    output of 0, and the regression leaves its feature out.
    """
    windows, seed = [*fold], reader.settings["seed"]

    def precision(scores: Mapping[int, Tensor]) -> np.ndarray:
        """At L, of each window; 0 without a protein."""
        of_windows = np.zeros(results.sizes["window"])
        of_windows[windows] = [_protein(reader, number).precision(scores[number])[0, 0] for number in windows]
        return of_windows

    cells = cells_of(best, reader.measured, seed)
    first = sum(site.heads for site in reader.measured if site.index < best[0])
    plain = precision(scores)
    changes: dict[Head, np.ndarray] = {}
    for cell in cells:
        features = gathered(reader, windows, cell)
        for of_protein in features.values():
            of_protein[first + cell[1]] = 0
        changes[cell] = precision(_scores(features, fold, fits)) - plain
    relation = reader.relations.index(RELATION)
    margins, ones = plain - separation[:, 0], np.ones(len(plain))
    return summarised(results, {relation: windows}, {relation: cells}, margins, changes, ones, seed, "share")


def _precision(
    reader: RelationReader, scores: Mapping[int, Tensor], of_window: np.ndarray, present: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of precision over the proteins of each unit, ``(unit, cut)``, and their numbers ``(unit,)``."""
    of_proteins = {number: _protein(reader, number).precision(of_pairs)[:, 0] for number, of_pairs in scores.items()}
    ones = {number: np.ones(1) for number in scores}
    return _by_unit(of_proteins, of_window, present), _by_unit(ones, of_window, present)[:, 0]


def _by_unit(values: Mapping[int, np.ndarray], of_window: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Sums over the windows of each unit, ``(unit, ...)``."""
    sums = np.zeros((len(present), *next(iter(values.values())).shape))
    for number, value in values.items():
        sums[np.searchsorted(present, of_window[number])] += value
    return sums


def save_contact_head(result: xr.Dataset, file: Path) -> None:
    """Write the regression of contacts as safetensors, as the contact head of ESM in transformers is called.

    Parameters
    ----------
    result
        A result of `relations` with ``together=True`` over 6 or more proteins.
    file
        A new file: ``regression.weight (1, layers * heads)`` and ``regression.bias (1,)``. After
        ``model.esm.contact_head.load_state_dict(load_file(file))``, ``model.predict_contacts`` has its probabilities.
        ``attnscope runs export RUN --to contacts`` writes the same of a run.

    Raises
    ------
    AttnscopeError
        If the result has no regression, or the file exists.
    """
    content = contact_head(result)
    if file.exists():
        raise AttnscopeError(f"{file} exists: give another name")
    file.write_bytes(content)


def contact_head(result: xr.Dataset) -> bytes:
    """The file of `save_contact_head`."""
    from safetensors.numpy import save

    if "contact_weight" not in result:
        raise AttnscopeError(
            f"the result has no regression of contacts: run relations with together (--together) over {LEAST} or "
            "more proteins"
        )
    weights = result.contact_weight.transpose("layer", "head").values
    tensors = {
        "regression.weight": weights[np.isfinite(weights)][None].astype(np.float32),
        "regression.bias": np.array([result.contact_bias.item()], dtype=np.float32),
    }
    return save(tensors, metadata={"model": str(result.attrs["model"])})
