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
        given = given_by_heads(of)
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
