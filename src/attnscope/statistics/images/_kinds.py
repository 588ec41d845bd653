"""Kinds of heads of vision encoders: a name for each by where its weight lies among the patches.

The criteria are those of text (see `attnscope.statistics._kinds`): a large share in one place, more than equal weights
and chance would put there. Only the places are others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope.statistics._independence import effective_labels, label_shares
from attnscope.statistics._kinds import (
    ALIKE_ENTROPY,
    ALIKE_PLACES,
    LOCAL,
    MORE,
    SHARE,
    beyond_chance,
    beyond_shared,
)
from attnscope.statistics._summary import counted
from attnscope.statistics.images._offsets import offset_name
from attnscope.statistics.images._ranking import patch_shares

#: Statistics from which kinds of heads are found.
NEEDED = ("entropy", "patch_profile", "same_row", "same_column")


@dataclass(frozen=True, eq=False)
class _Places:
    """Shares of a patch's weight, ``(head, place)``: one place, several, all near; and the entropy."""

    single: np.ndarray
    lines: np.ndarray
    near: np.ndarray
    entropy: np.ndarray

    @property
    def candidates(self) -> np.ndarray:
        return np.concatenate([self.single, self.lines, self.near], axis=1)


def kinds_of_images(settings: Mapping[str, object]) -> Callable[[xr.Dataset], xr.Dataset] | None:
    """What finds the kinds of heads in the results of a scan with these settings; None where it cannot.

    Examples
    --------
    >>> kinds_of_images({"statistics": ["entropy"]}) is None  # kinds are of where patches look
    True
    """
    statistics = settings["statistics"]
    has_all = isinstance(statistics, Sequence) and all(name in statistics for name in NEEDED)
    return summarize_images if has_all else None


def summarize_images(results: xr.Dataset) -> xr.Dataset:
    """Name the kind of every head in every image.

    The first of these that holds: 0.3 or more of a patch's weight on one neighbour (``self``, ``left``, ``up``, ``2
    right``, ...), on the class token or on registers; ``uniform``, as equal weights; half or more in the 3 x 3 patches
    about a patch (``local``), in the same row or the same column, ``within 2`` or ``within 3`` patches; else ``mixed``.
    All but ``uniform`` and ``mixed`` also ask for twice what equal weights give, and more than chance, over all images
    (bound of Chernoff and Hoeffding, over all heads and places). The class token and registers are the same for all
    patches: their odds must be six times those of equal weights.

    Parameters
    ----------
    results
        From a scan of images with the statistics `NEEDED`.

    Returns
    -------
    xarray.Dataset
        ``label (text, layer, head)``, -1 where patches are not known; ``label_share (layer, head, cluster)``,
        ``majority_share``, ``effective_labels (layer, head)``; the names as coordinate ``cluster``; the attribute
        ``kinds`` counts them in words.

    Examples
    --------
    >>> import attnscope
    >>> from transformers import ViTConfig, ViTModel
    >>> import torch
    >>> config = ViTConfig(image_size=8, patch_size=2, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> results = attnscope.scan(ViTModel(config), torch.zeros(1, 3, 8, 8))
    >>> results.label.shape, results.kinds
    ((1, 1, 2), 'No kinds of heads beyond chance. Heads: uniform: 2.')
    """
    names = _names(results)
    results = results.assign({f"{prefix}share": patch_shares(results, prefix) for prefix in ("", "equal_")})
    shape = tuple(results.sizes[dim] for dim in ("text", "layer", "head"))
    weights = results.rows * results.columns
    pooled = xr.Dataset(
        {
            name: (results[name] * weights).sum("text", skipna=False) / weights.sum()
            for name in map(str, results.data_vars)
            if {"text", "layer"} <= set(results[name].dims)
        }
    )
    measured, equal = (_places(pooled, prefix).candidates for prefix in ("", "equal_"))
    allowed = beyond_chance(measured, equal, float(weights.sum()))
    codes = np.stack([_codes(results.isel(text=text, drop=True), names, allowed) for text in range(shape[0])])
    exists = (
        np.isfinite(results.same_row.transpose("text", "layer", "head").values).reshape(shape[0], -1).all(0)
    )
    used = np.unique(codes[:, exists])
    labels = np.searchsorted(used, codes[:, exists])
    shares = label_shares(labels, len(used))
    kinds = tuple(names[code] for code in used)

    def by_head(values: np.ndarray, missing: float = np.nan) -> np.ndarray:
        whole = np.full((*values.shape[:-1], exists.size), missing, dtype=values.dtype)
        whole[..., exists] = values
        return whole.reshape(*values.shape[:-1], *shape[1:])

    dims = ("layer", "head")
    return xr.Dataset(
        {
            "label": (("text", *dims), by_head(labels, -1.0)),
            "label_share": ((*dims, "cluster"), np.moveaxis(by_head(shares.T), 0, -1)),
            "majority_share": (dims, by_head(shares.max(-1))),
            "effective_labels": (dims, by_head(effective_labels(shares))),
        },
        coords={"cluster": np.array(kinds, dtype=object)},
        attrs={"kinds": counted(kinds, shares.argmax(-1), None)},
    )


def _names(results: xr.Dataset) -> list[str]:
    """All kinds that there could be, in the order of `_Places`, and the two that are no place."""
    offsets = results.row_offset.values.tolist()
    beside = [name.replace("_", " ") for name in ("class_token", "registers") if name in results]
    within = ["local" if reach == 1 else f"within {reach}" for reach in range(1, max(offsets) + 1)]
    single = [offset_name(row, column) for row in offsets for column in offsets]
    return [*single, *beside, "same row", "same column", *within, "uniform", "mixed"]


def _places(results: xr.Dataset, prefix: str = "") -> _Places:
    """Of every head, layer by layer; what equal weights give is repeated for each head."""
    offsets = np.abs(results.row_offset.values)
    band = int(offsets.max(initial=0))
    heads = results.sizes["head"]

    def flat(values: xr.DataArray) -> np.ndarray:
        if prefix:
            return np.repeat(values.values, heads)
        return values.transpose("layer", "head").values.reshape(-1)

    shares = results[f"{prefix}share"].transpose("layer", ..., "row_offset", "column_offset")
    square = shares.values.reshape(-1, len(offsets), len(offsets))
    square = np.repeat(square, heads, 0) if prefix else square
    beside = [flat(results[prefix + name]) for name in ("class_token", "registers") if name in results]
    return _Places(
        single=np.column_stack([square.reshape(len(square), -1), *beside]),
        lines=np.column_stack([flat(results[prefix + name]) for name in ("same_row", "same_column")]),
        near=np.column_stack(
            [
                np.zeros((len(square), 0)),
                *(
                    square[:, offsets <= reach][:, :, offsets <= reach].sum((1, 2))
                    for reach in range(1, band + 1)
                ),
            ]
        ),
        entropy=flat(results[f"{prefix}entropy"]),
    )


def _codes(results: xr.Dataset, names: list[str], allowed: np.ndarray) -> np.ndarray:
    """Number of the kind of each head among `names`."""
    measured, equal = _places(results), _places(results, "equal_")
    enough = allowed & (measured.candidates >= MORE * equal.candidates)
    single, lines = measured.single.shape[1], measured.lines.shape[1]
    shared = slice(results.sizes["row_offset"] * results.sizes["column_offset"], single)
    enough[:, shared] &= beyond_shared(measured.single[:, shared], equal.single[:, shared])
    shares = np.where(enough[:, :single], measured.single, 0.0)
    moved = np.abs(measured.single - equal.single).sum(-1) / 2
    aside = np.abs(measured.lines - equal.lines).max(-1)
    alike = (np.maximum(moved, aside) <= ALIKE_PLACES) & (
        np.abs(measured.entropy - equal.entropy) <= ALIKE_ENTROPY
    )
    choices = [(shares.max(-1) >= SHARE, shares.argmax(-1)), (alike, names.index("uniform"))]
    within = range(single + lines, single + lines + measured.near.shape[1])
    order = (*within[:1], *range(single, single + lines), *within[1:])
    choices += [(enough[:, place] & (measured.candidates[:, place] >= LOCAL), place) for place in order]
    conditions, codes = zip(*choices, strict=True)
    return np.select(conditions, codes, names.index("mixed"))
