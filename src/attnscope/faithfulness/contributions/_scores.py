"""Scores of a text's tokens that are made of weights and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.faithfulness.arrays import attention_flow, rollout
from attnscope.faithfulness.contributions._heads import shares
from attnscope.faithfulness.contributions._layers import BlockNorms, residual_part
from attnscope.faithfulness.contributions._record import given_by_heads

if TYPE_CHECKING:
    from attnscope.faithfulness.contributions._one_text import OneText

    Scores = Float[np.ndarray, "place token"]


def weights(one: OneText) -> Scores:
    """Mean over heads of the last layer."""
    return _last(one, [layer.mean(0) for layer in one.weights])


def weights_mean(one: OneText) -> Scores:
    """The same, mean over layers."""
    return _mean(one, [layer.mean(0) for layer in one.weights])


def norms(one: OneText) -> Scores:
    """Norms of what the last layer's heads give together."""
    return _last(one, _norms(one))


def norms_mean(one: OneText) -> Scores:
    """The same as shares of each row, mean over layers."""
    return _mean(one, [shares(layer) for layer in _norms(one)])


def block_norms(one: OneText) -> Scores:
    """Norms of what the last block's output gets."""
    return _last(one, _block_norms(one))


def block_norms_rollout(one: OneText) -> Scores:
    """The same as shares of each row, multiplied over layers; the residual keeps the query's own token."""
    rolled = np.eye(one.sides.tokens)
    for of, layer in zip(one.records, _block_norms(one), strict=True):
        rows, columns = one.sides.of(of.site.kind)
        part = layer.double().cpu().numpy()
        kept = np.zeros(len(part))
        if rows != columns:  # else it is within the diagonal
            kept = residual_part(of).norm(dim=-1).double().cpu().numpy()
        total = np.maximum(part.sum(1) + kept, 1e-300)
        whole = np.eye(one.sides.tokens)
        whole[rows] *= (kept / total)[:, None]
        whole[rows, columns] += part / total[:, None]
        rolled = whole @ rolled
    return rolled[one.rows]


def rolled_out(one: OneText) -> Scores:
    """Product over layers of half the identity and half the weights."""
    return rollout(_joint(one))[-1][one.rows]


def flow(one: OneText) -> Scores:
    """Maximum flow through all layers."""
    return attention_flow(_joint(one), one.rows)


def _joint(one: OneText) -> Float[np.ndarray, "layer token token"]:
    """Each layer's mean weights over the tokens of both texts; a side that it leaves alone keeps itself."""
    found = np.tile(np.eye(one.sides.tokens), (len(one.records), 1, 1))
    for layer, kind, of in zip(found, one.kinds, one.weights, strict=True):
        rows, columns = one.sides.of(kind)
        layer[rows] = 0
        layer[rows, columns] = of.mean(0).double().cpu().numpy()
    return found


@torch.no_grad()
def _norms(one: OneText) -> list[Tensor]:
    found: list[Tensor] = []
    for of, layer in zip(one.records, one.weights, strict=True):
        given = given_by_heads(of)
        products = torch.einsum("hkw,gkw->khg", given, given)
        by_key = layer.to(products.dtype).permute(2, 0, 1)  # (key, head, query)
        found.append(((products @ by_key) * by_key).sum(1).T.clamp_min(0).sqrt())
    return found


@torch.no_grad()
def _block_norms(one: OneText) -> list[Tensor]:
    return [
        BlockNorms(of, 1).rows(slice(0, layer.shape[1]), layer)
        for of, layer in zip(one.records, one.weights, strict=True)
    ]


def _at(one: OneText, kind: str, matrix: Tensor) -> Scores:
    """A layer's rows of the places, over the tokens of both texts; nothing if it is the encoder's."""
    rows, columns = one.sides.of(kind)
    found = np.zeros((len(one.places), one.sides.tokens))
    if rows == one.sides.predicting:
        found[:, columns] = matrix[one.places].double().cpu().numpy()
    return found


def _last(one: OneText, matrices: Sequence[Tensor]) -> Scores:
    last = {kind: at for at, kind in enumerate(one.kinds)}  # of each kind
    return np.sum([_at(one, kind, matrices[at]) for kind, at in last.items()], axis=0)


def _mean(one: OneText, matrices: Sequence[Tensor]) -> Scores:
    of_kind = {kind: [at for at, own in enumerate(one.kinds) if own == kind] for kind in one.kinds}
    parts = [np.mean([_at(one, kind, matrices[at]) for at in places], 0) for kind, places in of_kind.items()]
    return np.sum(parts, axis=0)
