"""The kinds of weights that are laid along offsets, and how what is found of them is labelled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import xarray as xr

from attnscope.capture import layer_coordinates
from attnscope.errors import AttnscopeError
from attnscope.faithfulness.contributions._layers import MIXING
from attnscope.store import padded_heads

if TYPE_CHECKING:
    from attnscope.faithfulness.contributions._record import Record

Kind = Literal["weights", "norms", "effective", "block_norms", "rollout", "gradient"]
Name = TypeVar("Name", bound=str)
KINDS: tuple[Kind, ...] = ("weights", "norms", "effective", "block_norms", "rollout", "gradient")

_HEAD, _LAYER = ("text", "layer", "head"), ("text", "layer")
_VARIABLES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "profile_weights": ((*_HEAD, "offset"), "Mean weight at each offset", "share"),
    "profile_norms": ((*_HEAD, "offset"), "Mean share of a row's norms at each offset", "share"),
    "profile_effective": ((*_HEAD, "offset"), "Mean effective weight at each offset", "weight"),
    "null_share": (_HEAD, "Share of a row's squared weights that its output does not see", "share"),
    "null_share_permuted": (_HEAD, "The same, mean over permutations of the row", "share"),
    "rank": (_HEAD, "Rank of the values that a row sees, mean over rows", "1"),
    "free_dimensions": (_HEAD, "Dimension of the weights that give the same output, mean over rows", "1"),
    "identifiable": (_HEAD, "Rows where that dimension is 0", "share"),
    "profile_gradient": (
        (*_HEAD, "offset"),
        "Mean share of a row's gradient x attention at each offset",
        "share",
    ),
    "profile_block_norms": (
        (*_LAYER, "offset"),
        "Mean share of the norms of what tokens give to the block, at each offset",
        "share",
    ),
    "mixing_ratio": ((*_LAYER, "of"), "Part of other tokens in what comes out", "share"),
    "profile_rollout": ((*_LAYER, "offset"), "Mean rollout up to this layer, at each offset", "share"),
    "profile_relevance": (
        (*_LAYER, "offset"),
        "Mean share of a row's relevance up to this layer, at each offset",
        "share",
    ),
}


def chosen_kinds(kinds: Sequence[str] | None, known: Collection[Name]) -> list[Name]:
    """Validate the names of kinds; None means all.

    Examples
    --------
    >>> chosen_kinds(["values"], KINDS)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there is no kind 'values': choose from weights, norms, effective, block_norms, ...
    """
    unknown = [kind for kind in kinds or () if kind not in known]
    if unknown or (kinds is not None and not kinds):
        said = f"there is no kind {unknown[0]!r}" if unknown else "no kind was named"
        raise AttnscopeError(f"{said}: choose from {', '.join(known)}")
    return [kind for kind in known if kinds is None or kind in kinds]


def assembled(records: Sequence[Record], layers: Sequence[dict[str, np.ndarray]], band: int) -> xr.Dataset:
    """What was found in each layer of one text, labelled; NaN where a layer lacks it."""
    names = [name for name in _VARIABLES if any(name in layer for layer in layers)]
    variables: dict[str, Any] = {}
    for name in names:
        dims, long_name, units = _VARIABLES[name]
        like = next(layer[name] for layer in layers if name in layer)
        rows = [
            layer.get(
                name,
                np.full(
                    (records[at].call.query.shape[1], *like.shape[1:]) if "head" in dims else like.shape,
                    np.nan,
                ),
            )
            for at, layer in enumerate(layers)
        ]
        values = padded_heads(rows) if "head" in dims else np.stack(rows)
        variables[name] = (dims, values[None], {"long_name": long_name, "units": units})
    heads = max(record.call.query.shape[1] for record in records)
    coords: dict[str, Any] = {
        **layer_coordinates(record.site for record in records),
        "offset": np.arange(-band, band + 1),
    }
    coords |= {"head": np.arange(heads)} if any("head" in _VARIABLES[name][0] for name in names) else {}
    coords |= {"of": list(MIXING)} if "mixing_ratio" in names else {}
    return xr.Dataset(variables, coords)
