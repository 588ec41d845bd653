"""The kinds of weights that are laid along offsets, and how what is found of them is labelled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.intervention.arrays.paths import attention_flow, rollout
from attnscope.intervention.contributions.heads import shares
from attnscope.intervention.contributions.layers import MIXING, BlockNorms, residual_part
from attnscope.intervention.contributions.record import value_outputs
from attnscope.intervention.session import values_of
from attnscope.store.arrays import padded_heads
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.intervention.contributions.record import Record
    from attnscope.intervention.contributions.run import OneText

Kind = Literal["weights", "norms", "effective", "block_norms", "rollout", "gradient"]
Name = TypeVar("Name", bound=str)
KINDS: tuple[Kind, ...] = ("weights", "norms", "effective", "block_norms", "rollout", "gradient")

_HEAD, _LAYER = ("window", "layer", "head"), ("window", "layer")
_VARIABLES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "profile_weights": ((*_HEAD, "offset"), "Mean weight at each offset", "share"),
    "profile_norms": ((*_HEAD, "offset"), "Mean share of a row's norms at each offset", "share"),
    "profile_effective": ((*_HEAD, "offset"), "Mean effective weight at each offset", "weight"),
    "null_share": (_HEAD, "Share of a row's squared weights that its output does not see", "share"),
    "null_share_permuted": (_HEAD, "The same, mean over permutations of the row", "share"),
    "rank": (_HEAD, "Rank of the values that a row sees, mean over rows", "1"),
    "free_dimensions": (_HEAD, "Dimension of the weights that give the same output, mean over rows", "1"),
    "identifiable": (_HEAD, "Rows where that dimension is 0", "share"),
    "profile_gradient": ((*_HEAD, "offset"), "Mean share of a row's gradient x attention at each offset", "share"),
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
    """Validate the names of kinds; None means all."""
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
                np.full((records[at].call.query.shape[1], *like.shape[1:]) if "head" in dims else like.shape, np.nan),
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


if TYPE_CHECKING:
    Scores = Float[np.ndarray, "place token"]


def weights(text: OneText) -> Scores:
    """Mean over heads of the last layer."""
    return _last(text, [layer.mean(0) for layer in text.weights])


def weights_mean(text: OneText) -> Scores:
    """The same, mean over layers."""
    return _mean(text, [layer.mean(0) for layer in text.weights])


def norms(text: OneText) -> Scores:
    """Norms of what the last layer's heads give together."""
    return _last(text, _norms(text))


def norms_mean(text: OneText) -> Scores:
    """The same as shares of each row, mean over layers."""
    return _mean(text, [shares(layer) for layer in _norms(text)])


def block_norms(text: OneText) -> Scores:
    """Norms of what the last block's output gets."""
    return _last(text, _block_norms(text))


def block_norms_rollout(text: OneText) -> Scores:
    """The same as shares of each row, multiplied over layers; the residual keeps the query's own token."""
    rolled = np.eye(text.sides.tokens)
    for of, layer in zip(text.records, _block_norms(text), strict=True):
        rows, columns = text.sides.of(of.site.kind)
        part = layer.double().cpu().numpy()
        kept = np.zeros(len(part))
        if rows != columns:  # else it is within the diagonal
            kept = residual_part(of).norm(dim=-1).double().cpu().numpy()
        total = np.maximum(part.sum(1) + kept, 1e-300)
        whole = np.eye(text.sides.tokens)
        whole[rows] *= (kept / total)[:, None]
        whole[rows, columns] += part / total[:, None]
        rolled = whole @ rolled
    return rolled[text.rows]


def rolled_out(text: OneText) -> Scores:
    """Product over layers of half the identity and half the weights."""
    return rollout(_joint(text))[-1][text.rows]


def flow(text: OneText) -> Scores:
    """Maximum flow through all layers."""
    return attention_flow(_joint(text), text.rows)


def _joint(text: OneText) -> Float[np.ndarray, "layer token token"]:
    """Each layer's mean weights over the tokens of both texts; a side that it leaves alone keeps itself."""
    joint = np.tile(np.eye(text.sides.tokens), (len(text.records), 1, 1))
    for layer, kind, of in zip(joint, text.kinds, text.weights, strict=True):
        rows, columns = text.sides.of(kind)
        layer[rows] = 0
        layer[rows, columns] = of.mean(0).double().cpu().numpy()
    return joint


@torch.no_grad()
def _norms(text: OneText) -> list[Tensor]:
    norms: list[Tensor] = []
    for of, layer in zip(text.records, text.weights, strict=True):
        given = value_outputs(of)
        products = torch.einsum("hkw,gkw->khg", given, given)
        by_key = layer.to(products.dtype).permute(2, 0, 1)  # (key, head, query)
        norms.append(((products @ by_key) * by_key).sum(1).T.clamp_min(0).sqrt())
    return norms


@torch.no_grad()
def _block_norms(text: OneText) -> list[Tensor]:
    return [
        BlockNorms(of, 1).rows(slice(0, layer.shape[1]), layer)
        for of, layer in zip(text.records, text.weights, strict=True)
    ]


def _at(text: OneText, kind: str, matrix: Tensor) -> Scores:
    """A layer's rows of the places, over the tokens of both texts; nothing if it is the encoder's."""
    rows, columns = text.sides.of(kind)
    scores = np.zeros((len(text.places), text.sides.tokens))
    if rows == text.sides.predicting:
        scores[:, columns] = matrix[text.places].double().cpu().numpy()
    return scores


def _last(text: OneText, matrices: Sequence[Tensor]) -> Scores:
    last = {kind: at for at, kind in enumerate(text.kinds)}  # of each kind
    return np.sum([_at(text, kind, matrices[at]) for kind, at in last.items()], axis=0)


def _mean(text: OneText, matrices: Sequence[Tensor]) -> Scores:
    of_kind = {kind: [at for at, own in enumerate(text.kinds) if own == kind] for kind in text.kinds}
    parts = [np.mean([_at(text, kind, matrices[at]) for at in places], 0) for kind, places in of_kind.items()]
    return np.sum(parts, axis=0)


def gradient(text: OneText) -> Scores:
    """Norm of the gradient of the outcome's log probability by the token's vector."""
    return _by_token(text, lambda slope, _: slope.norm(dim=-1))


def gradient_input(text: OneText) -> Scores:
    """Absolute product of that gradient and the vector."""
    return _by_token(text, lambda slope, vector: (slope * vector).sum(-1).abs())


def gradient_attention(text: OneText) -> Scores:
    """Relevance through all layers: a row of R - I for each place, a vector carried down from the last layer."""
    values = [values_of(of.call)[0].transpose(-2, -1) for of in text.records]
    scores: list[np.ndarray] = []
    for number, row in enumerate(text.rows):
        slopes = _slopes(text, number, [of.output for of in text.records])
        start = torch.zeros(text.sides.tokens, dtype=torch.float64)
        start[row] = 1
        relevance = start.clone()
        for at in reversed(range(len(text.records))):
            queries, keys = text.sides.of(text.kinds[at])
            weights = text.weights[at]
            kept = (weights * (slopes[at][0].to(weights.dtype) @ values[at])).clamp_min(0).mean(0)
            relevance[keys] += relevance[queries] @ kept.double().cpu()
        scores.append((relevance - start).numpy())
    return np.stack(scores)


def _by_token(text: OneText, size: Callable[[Tensor, Tensor], Tensor]) -> Scores:
    scores: list[np.ndarray] = []
    for number in range(len(text.rows)):
        pairs = zip(_slopes(text, number, text.leaves), text.leaves, strict=True)
        sizes = [size(slope[0], leaf.detach()[0]) for slope, leaf in pairs]
        scores.append(torch.cat(sizes).double().cpu().numpy())
    return np.stack(scores)


def _slopes(text: OneText, number: int, by: list[Tensor]) -> tuple[Tensor, ...]:
    """Derivative of the log probability of a place's outcome."""
    of = text.predicted[number, text.outcomes[number]]
    return torch.autograd.grad(of, by, retain_graph=True, allow_unused=True, materialize_grads=True)
