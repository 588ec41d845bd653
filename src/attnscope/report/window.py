"""Packing the weights of one window so small that a page can carry every head.

A weight w becomes one byte on a logarithmic scale, `255 + round(254/16 log2 w)`: 0 for w < 2^-16, and within
2.2% of w elsewhere. A head's bytes are laid out in planes (low bytes of the keys, high bytes, steps from one
weight to the next smaller, unlisted mass of each row), because like beside like deflates best; then zlib and
base64.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.errors import AttnscopeError
from attnscope.figures.reading import axis_values, require, side_tokens, sides

if TYPE_CHECKING:
    import xarray as xr

OCTAVES, STEPS = 16, 254
_MOST_TOKENS = 2048  # more than a reader can read; also keeps keys within two bytes
_MOST_WEIGHTS = 5_000_000  # over all heads: bounds the page at about 10 MB


@dataclass(frozen=True)
class Window:
    """One window as the page holds it: what all heads share, and one packed string per head."""

    shared: dict[str, Any]
    heads: list[str | None]


def pack_window(sample: xr.Dataset) -> Window:
    """Pack a sample; a long window is cut to its first tokens and many ranks to the largest weights.

    Parameters
    ----------
    sample
        ``token``, ``special`` (query), ``key`` and ``weight`` (layer, head, query, rank), optionally ``rest`` (layer,
        head, query), and of a decoder beside an encoder ``target_token``, ``target_special`` (query).

    Returns
    -------
    Window
        `shared` holds the texts, for each layer which of them its queries and its keys are, the sizes and the constants
        of the scale; `heads` has layers times heads strings, None for a head without weights.
    """
    require(sample, ("token", "key", "weight"), purpose="The report's sample window")
    numbers = axis_values(sample, "layer")
    layers, heads = len(numbers), len(axis_values(sample, "head"))
    names = [side for side in ("", "target_") if f"{side}token" in sample.variables]
    texts = [_text(sample, side) for side in names]
    of_layer = [[names.index(side) for side in sides(sample, layer)] for layer in numbers]
    longest = max(len(text["tokens"]) for text in texts)
    ranks = min(sample.sizes["rank"], max(1, _MOST_WEIGHTS // (layers * heads * longest)))
    order = ("layer", "head", "query", "rank")
    key, weight = sample["key"].transpose(*order), sample["weight"].transpose(*order)

    packed: list[str | None] = []
    complete = True
    for at in np.ndindex(layers, heads):
        tokens = len(texts[of_layer[at[0]][0]]["tokens"])
        keys = key[at].values[:tokens].astype(np.int64)
        weights = weight[at].values[:tokens].astype(np.float64)
        if "rest" in sample.variables:
            rest = sample["rest"].transpose("layer", "head", "query")[at].values[:tokens].astype(np.float64)
        else:
            rest = np.zeros(tokens)
        if not np.isfinite(weights).all():
            packed.append(None)
            continue
        if (weights[keys >= 2**16] > 0).any():
            raise AttnscopeError("The sample window has keys beyond position 65535: choose a shorter window.")
        keys, weights, rest = _largest(keys, weights, np.nan_to_num(rest), ranks)
        complete &= bool((rest < 2.0**-OCTAVES).all())
        packed.append(_pack(keys, encode(weights), encode(rest)))
    shared = {
        "texts": texts,
        "sides": of_layer,
        "ranks": ranks,
        "complete": complete,
        "octaves": OCTAVES,
        "steps": STEPS,
    }
    return Window(shared, packed)


def _text(sample: xr.Dataset, side: str) -> dict[str, Any]:
    """Tokens of one text, cut to what a page holds, and how many there are in all."""
    tokens = side_tokens(sample, side)
    special = (
        sample[f"{side}special"].values if f"{side}special" in sample.variables else [False] * len(tokens)
    )
    shown = min(len(tokens), _MOST_TOKENS)
    return {
        "tokens": tokens[:shown],
        "special": [bool(mark) for mark in special[:shown]],
        "total": len(tokens),
    }


def encode(weights: np.ndarray) -> np.ndarray:
    """One byte per weight on the logarithmic scale.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.report.window import encode
    >>> encode(np.array([1.0, 0.5, 0.25, 1e-9, 0.0])).tolist()
    [255, 239, 223, 0, 0]
    """
    kept = weights >= 2.0**-OCTAVES
    level = STEPS + 1 + np.round(STEPS / OCTAVES * np.log2(np.where(kept, weights, 1.0)))
    return np.where(kept, np.clip(level, 1, STEPS + 1), 0).astype(np.uint8)


def _largest(
    keys: np.ndarray, weights: np.ndarray, rest: np.ndarray, ranks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest weights of each row in descending order; what is left out goes to the rest."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    kept, cut = order[:, :ranks], order[:, ranks:]
    rest = rest + np.take_along_axis(weights, cut, axis=-1).sum(axis=-1)
    return np.take_along_axis(keys, kept, axis=-1), np.take_along_axis(weights, kept, axis=-1), rest


def _pack(keys: np.ndarray, codes: np.ndarray, rest: np.ndarray) -> str:
    keys = np.where(codes > 0, keys, 0).astype(np.uint16)
    steps = codes.copy()
    steps[:, 1:] = codes[:, :-1] - codes[:, 1:]  # descending, so never below 0
    planes = ((keys & 0xFF).astype(np.uint8), (keys >> 8).astype(np.uint8), steps, rest)
    return base64.b64encode(zlib.compress(b"".join(plane.tobytes() for plane in planes), 9)).decode("ascii")
