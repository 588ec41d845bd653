"""Weights followed through all layers: rollout, relevance and flow."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnscope.intervention.arrays.changes import non_negative
from attnscope.support.checks import agree, check_real, finite
from attnscope.support.errors import AttnscopeError

FLOW_TOKENS = 64  # a maximum flow through 12 layers of 64 tokens takes half a second, and a text has 4,096


def rollout(
    weights: Float[np.ndarray, "layer query key"], *, residual: float = 0.5
) -> Float[np.ndarray, "layer token token"]:
    r"""Multiply the layers' weights: how much of each input token is in each token after each layer.

    :math:`\tilde A_l = \rho I + (1-\rho)A_l` and :math:`R_l = \tilde A_l R_{l-1}`, from :math:`R_0 = I`.

    Abnar and Zuidema (2020), Quantifying Attention Flow in Transformers, ACL 2020, equation 1.
    """
    check_real(0.0, 1.0, residual=residual)
    weights = _square(non_negative("weights", weights))
    rolled, layers = np.eye(weights.shape[1]), []
    for layer in weights:
        rolled = residual * rolled + (1 - residual) * layer @ rolled
        layers.append(rolled)
    return np.stack(layers)


def gradient_attention(
    weights: Float[np.ndarray, "layer head query key"], gradients: Float[np.ndarray, "*gradients"]
) -> Float[np.ndarray, "layer token token"]:
    r"""Relevance of each input token to what the gradients are of, through all layers."""
    weights, gradients = finite("weights", weights), finite("gradients", gradients)
    if weights.shape != gradients.shape:
        raise AttnscopeError(
            f"found weights of shape {weights.shape} and gradients of shape {gradients.shape}: expected as many "
            "gradients as weights"
        )
    each = _square(np.maximum(weights * gradients, 0.0).mean(1))
    relevance, layers = np.eye(each.shape[1]), []
    for layer in each:
        relevance = relevance + layer @ relevance
        layers.append(relevance)
    return np.stack(layers)


def attention_flow(
    weights: Float[np.ndarray, "layer query key"],
    queries: Sequence[int] | None = None,
    *,
    residual: float = 0.5,
    limit: int = FLOW_TOKENS,
) -> Float[np.ndarray, "chosen token"]:
    r"""Maximum flow from a token after the last layer to each input token.

    The layers are a graph whose edge from i in layer l to j below has the capacity :math:`\tilde A_l[i, j]` of
    `rollout`. Rollout is one such flow, so that the largest is at least as large; and it is at most 1.

    Abnar and Zuidema (2020), section 3.
    """
    check_real(0.0, 1.0, residual=residual)
    weights = _square(non_negative("weights", weights))
    layers, tokens = weights.shape[:2]
    if tokens > limit:
        raise AttnscopeError(
            f"found {tokens} tokens; attention flow takes at most {limit}, as its cost grows with their fourth power: "
            "give a shorter text, or take rollout"
        )
    capacities = residual * np.eye(tokens) + (1 - residual) * weights
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from((layer, token) for layer in range(layers + 1) for token in range(tokens))
    for layer, matrix in enumerate(capacities):
        above, below = np.nonzero(matrix)
        graph.add_weighted_edges_from(
            (((layer + 1, i), (layer, j), matrix[i, j]) for i, j in zip(above.tolist(), below.tolist(), strict=True)),
            weight="capacity",
        )
    chosen = range(tokens) if queries is None else queries
    return np.array(
        [[nx.maximum_flow_value(graph, (layers, query), (0, token)) for token in range(tokens)] for query in chosen],
        dtype=np.float64,
    ).reshape(len(chosen), tokens)


def _square(matrices: np.ndarray) -> np.ndarray:
    agree("tokens", "the queries", matrices.shape[-2], "the keys", matrices.shape[-1])
    return matrices
