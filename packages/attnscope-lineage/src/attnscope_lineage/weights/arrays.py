"""Replacement weights for a head, distances of weights, and attention flow, in NumPy alone."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.optimize import linprog, nnls
from scipy.special import rel_entr

from attnscope.explanation.arrays.checks import labelled
from attnscope.intervention.arrays import Allowed
from attnscope.support.errors import AttnscopeError


def _visible(weights: np.ndarray, allowed: Allowed) -> Bool[np.ndarray, "query key"]:
    """Which keys each query may attend to; by default all."""
    return np.ones(weights.shape, dtype=bool) if allowed is None else allowed


def uniform_weights(weights: Float[np.ndarray, "query key"], allowed: Allowed = None) -> Float[np.ndarray, "query key"]:
    """Spread the weight of each row uniformly over the keys that it may attend to.

    Wiegreffe and Pinter (2019), Attention is not not Explanation, EMNLP 2019, section 3.2.
    """
    allowed = _visible(weights, allowed)
    return np.where(allowed, weights.sum(1, keepdims=True) / np.maximum(allowed.sum(1, keepdims=True), 1), 0.0)


def erased_weights(
    weights: Float[np.ndarray, "query key"],
    importance: Float[np.ndarray, "query key"],
    fraction: float,
    allowed: Allowed = None,
) -> Float[np.ndarray, "query key"]:
    r"""Erase the most important keys of each row and renormalise the others to the same sum.

    Erasing key j alone moves the row's output by :math:`\alpha_j/(1-\alpha_j)\,(o - v_j)`.

    Serrano and Smith (2019), Is Attention Interpretable?, ACL 2019, section 4.
    """
    allowed = _visible(weights, allowed)
    rank = np.argsort(np.argsort(np.where(allowed, -importance, np.inf), axis=1, kind="stable"), axis=1)
    count = np.ceil(fraction * allowed.sum(1, keepdims=True) - 1e-9)  # 0.1 of 10 keys is 1, not 2
    left = np.where(rank < count, 0.0, weights)
    remaining = left.sum(1, keepdims=True)
    return left * np.where(remaining > 0, weights.sum(1, keepdims=True) / np.where(remaining > 0, remaining, 1), 0)


def total_variation(
    p: Float[np.ndarray, "*batch outcome"], q: Float[np.ndarray, "*batch outcome"]
) -> Float[np.ndarray, "*batch"]:
    r"""Total variation distance of rows with equal sums, :math:`\mathrm{TVD} = \tfrac12\sum_j |p_j - q_j|`."""
    return np.asarray(np.abs(p - q).sum(-1) / 2)


def jensen_shannon(
    p: Float[np.ndarray, "*batch outcome"], q: Float[np.ndarray, "*batch outcome"]
) -> Float[np.ndarray, "*batch"]:
    r"""Jensen-Shannon divergence, :math:`\tfrac12\mathrm{KL}(p\|m) + \tfrac12\mathrm{KL}(q\|m)`, m half of the sum.

    With distributions, :math:`0 \le \mathrm{JSD} \le \ln 2` and
    :math:`\mathrm{TVD}^2/2 \le \mathrm{JSD} \le \mathrm{TVD}\,\ln 2`.

    Lin (1991), Divergence measures based on the Shannon entropy, IEEE Transactions on Information Theory 37.
    """
    middle = (p + q) / 2
    return np.asarray(np.maximum((rel_entr(p, middle).sum(-1) + rel_entr(q, middle).sum(-1)) / 2, 0.0))


Objective = Literal["top_weight", "distance"]


LONGEST_PROGRAM = 2048  # keys: a row is a linear program with one variable for each key


_EXACT = 1e-12  # singular values below this share of the largest belong to redundant constraints


_STEPS, _STARTS = 20, 4


_LEAST_WEIGHT = 1e-11  # weight that is part of a vertex


_FINE = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}  # the finest that HiGHS takes


_MOVED = 1e-6  # of the weight: less is the solver's rounding


def adversarial_weights(
    weights: Float[np.ndarray, "query key"],
    values: Float[np.ndarray, "key width"],
    *,
    objective: Objective = "top_weight",
    allowed: Allowed = None,
    seed: int = 0,
) -> xr.Dataset:
    r"""Find weights that differ most from a head's own and give exactly the same output.

    Solves a linear program for each row (scipy's HiGHS) over all :math:`\alpha' \ge 0` with
    :math:`V^\top\alpha' = V^\top\alpha` and the same sum. ``"top_weight"`` minimises the weight of the token with the
    largest weight; this minimum is exact. ``"distance"`` maximises :math:`\tfrac12\lVert\alpha'-\alpha\rVert_1`, a
    convex function whose maximum is at a vertex: it follows the tangent from vertex to vertex and returns the best of
    several starts, a lower bound of the maximum.

    Jain and Wallace (2019), section 4.2.2, ask this of a whole model. The output of one head is linear in its weights,
    so the answer needs no gradient search.
    """
    if len(values) > LONGEST_PROGRAM:
        raise AttnscopeError(
            f"found {len(values)} keys; the linear program takes at most {LONGEST_PROGRAM}. Use a shorter text"
        )
    allowed = _visible(weights, allowed)
    generator = np.random.default_rng(seed)
    changed = weights.copy()
    for query, keys in enumerate(allowed):
        row = weights[query, keys]
        if row.sum() > 0:
            program, top = _Row(row, values[keys]), np.zeros_like(row)
            top[row.argmax()] = 1.0
            of_top = objective == "top_weight"
            changed[query, keys] = program.solved(top) if of_top else program.furthest(generator)
    return _described(weights, changed, values)


class _Row:
    """The linear program of one row: its weights, and an orthonormal basis of the constraints."""

    def __init__(self, weights: Float[np.ndarray, " key"], values: Float[np.ndarray, "key width"]) -> None:
        # scale the column of ones to the norm of V, so that the tolerance means the same for both
        ones = np.linalg.norm(values, 2) / np.sqrt(max(len(values), 1)) if values.any() else 1.0
        basis, size, _ = np.linalg.svd(np.column_stack([values, np.full(len(values), ones)]), full_matrices=False)
        self.weights, self.basis = weights, basis[:, size > _EXACT * size.max(initial=0.0)]
        self.kept = weights @ self.basis

    def furthest(self, generator: np.random.Generator) -> Float[np.ndarray, " key"]:
        """From several vertices, follow the tangent of the distance from vertex to vertex."""
        reached: list[np.ndarray] = []
        for cost in [self.weights, *generator.normal(size=(_STARTS, self.weights.size))]:
            reached.append(self.solved(cost))
            for _ in range(_STEPS):
                further = self.solved(-np.sign(reached[-1] - self.weights))
                if self._distance(further) <= self._distance(reached[-1]) + _MOVED * 1e-3:
                    break
                reached[-1] = further
        return max(reached, key=self._distance)

    def _distance(self, point: Float[np.ndarray, " key"]) -> float:
        return float(np.abs(point - self.weights).sum() / 2)

    def solved(self, cost: Float[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
        """The vertex of least cost, or the row's own weights if no vertex costs less."""
        solution = linprog(cost, A_eq=self.basis.T, b_eq=self.kept, bounds=(0, None), method="highs", options=_FINE)
        if solution.x is None:
            return self.weights
        point = np.maximum(solution.x, 0.0)
        support, exact = point > _LEAST_WEIGHT, np.zeros_like(point)
        exact[support], _ = nnls(self.basis[support].T, self.kept)  # without the solver's tolerance
        point = min((exact, point), key=lambda weights: np.abs(weights @ self.basis - self.kept).max())
        return point if cost @ point < cost @ self.weights - _MOVED * np.abs(cost).max() * 1e-3 else self.weights


def _described(weights: np.ndarray, changed: np.ndarray, values: np.ndarray) -> xr.Dataset:
    distance = total_variation(weights, changed)
    top = weights.argmax(1)
    rows = np.arange(len(weights))
    before = weights @ values
    size = np.maximum(np.abs(before).max(1), np.abs(values).max() * np.finfo(np.float64).eps)
    error = np.abs(changed @ values - before).max(1) / size
    return xr.Dataset(
        {
            "weights": labelled("query key", changed, "weights with the same output", "share"),
            "tvd": labelled("query", distance, "total variation distance of the weights", "share"),
            "jsd": labelled("query", jensen_shannon(weights, changed), "divergence of the weights", "nats"),
            "top_before": labelled("query", weights[rows, top], "largest weight", "share"),
            "top_after": labelled("query", changed[rows, top], "weight of that token afterwards", "share"),
            "output_error": labelled("query", error, "largest change of the output, of its largest value", "share"),
            "is_free": labelled("query", distance > _MOVED, "whether other weights give the same output"),
        }
    )


FLOW_TOKENS = 64  # a maximum flow through 12 layers of 64 tokens takes half a second, and a text has 4,096


def attention_flow(
    weights: Float[np.ndarray, "layer query key"], queries: Sequence[int] | None = None, *, limit: int = FLOW_TOKENS
) -> Float[np.ndarray, "chosen token"]:
    r"""Maximum flow from a token after the last layer to each input token.

    The layers are a graph whose edge from i in layer l to j below has the capacity
    :math:`\tilde A_l = (I + A_l) / 2`, as in rollout. Rollout is one such flow, so the maximum is at least as
    large. It is at most 1.

    Abnar and Zuidema (2020), Quantifying Attention Flow in Transformers, ACL 2020, section 3.
    """
    layers, tokens = weights.shape[:2]
    if tokens > limit:
        raise AttnscopeError(
            f"found {tokens} tokens; attention flow takes at most {limit}, because its cost grows with the fourth "
            "power of the length. Use a shorter text, or rollout"
        )
    capacities = (np.eye(tokens) + weights) / 2
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
