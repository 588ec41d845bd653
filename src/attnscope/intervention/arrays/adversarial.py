"""Other weights that give a head's output exactly."""

from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.optimize import linprog, nnls

from attnscope.explanation.arrays.checks import labelled
from attnscope.intervention.arrays.changes import jensen_shannon, non_negative, total_variation, visible_keys
from attnscope.intervention.arrays.effective import column_basis
from attnscope.support.checks import agree, finite
from attnscope.support.errors import AttnscopeError

Objective = Literal["top_weight", "distance"]
OBJECTIVES = ("top_weight", "distance")
LONGEST = 2048  # keys: a row of them is a linear program of as many variables
_EXACT = 1e-12  # singular values below this share of the largest: constraints that say nothing new
_STEPS = 20
_LEAST = 1e-11  # weight that is part of a vertex
_FINE = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}  # the finest that HiGHS takes
_MOVED = 1e-6  # of the weight: less is the solver's rounding


def adversarial_weights(
    weights: Float[np.ndarray, "query key"],
    values: Float[np.ndarray, "value_key width"],
    *,
    objective: Objective | str = "top_weight",
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
    starts: int = 4,
    seed: int = 0,
) -> xr.Dataset:
    r"""Find weights that are as unlike a head's own as can be, and give the same output exactly.

    Over all :math:`\alpha' \ge 0` with :math:`V^\top\alpha' = V^\top\alpha` and the same sum, a linear program for each
    row (scipy's HiGHS). ``"top_weight"`` minimises the weight of the token that had the most, and finds the true
    minimum. ``"distance"`` is for the largest :math:`\tfrac12\lVert\alpha'-\alpha\rVert_1`: a convex function, which is
    largest at a vertex but is no linear objective. It is replaced by its tangent at the present weights, whose optimum
    is the next vertex, until the distance grows no more; the best of several starts is kept, so that what is found is
    possible, and the largest may be larger.

    The question is that of Jain and Wallace (2019), section 4.2.2; for one head's output, which is linear in its
    weights, the answer needs no search.
    """
    if objective not in OBJECTIVES:
        raise AttnscopeError(f"objective is {objective!r}; expected one of {', '.join(map(repr, OBJECTIVES))}")
    weights, values = non_negative("weights", weights), finite("values", values)
    agree("keys", "weights", weights.shape[1], "values", len(values))
    if len(values) > LONGEST:
        raise AttnscopeError(
            f"found {len(values)} keys; the linear program takes at most {LONGEST}: give a shorter text"
        )
    allowed = visible_keys(weights, allowed)
    generator = np.random.default_rng(seed)
    changed = weights.copy()
    for query, keys in enumerate(allowed):
        row = weights[query, keys]
        if row.sum() > 0:
            program = _Row(row, column_basis(values[keys], with_ones=True, tolerance=_EXACT))
            changed[query, keys] = (
                program.without_top() if objective == "top_weight" else program.furthest(starts, generator)
            )
    return _described(weights, changed, values)


class _Row:
    """The program of one row: the weights, and orthonormal columns that the output and the sum are made of."""

    def __init__(self, weights: Float[np.ndarray, " key"], basis: Float[np.ndarray, "key rank"]) -> None:
        self.weights, self.basis = weights, basis
        self.kept = weights @ basis

    def without_top(self) -> Float[np.ndarray, " key"]:
        cost = np.zeros_like(self.weights)
        cost[self.weights.argmax()] = 1.0
        return self._solved(cost)

    def furthest(self, starts: int, generator: np.random.Generator) -> Float[np.ndarray, " key"]:
        costs = [self.weights, *generator.normal(size=(starts, self.weights.size))]
        reached = [self._climbed(self._solved(cost)) for cost in costs]
        return max(reached, key=self._distance)

    def _climbed(self, point: Float[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
        """Follow the tangent of the distance from vertex to vertex."""
        for _ in range(_STEPS):
            further = self._solved(-np.sign(point - self.weights))
            if self._distance(further) <= self._distance(point) + _MOVED * 1e-3:
                break
            point = further
        return point

    def _distance(self, point: Float[np.ndarray, " key"]) -> float:
        return float(np.abs(point - self.weights).sum() / 2)

    def _solved(self, cost: Float[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
        """The vertex of least cost; the row's own weights, which are allowed, where none costs less."""
        solution = linprog(cost, A_eq=self.basis.T, b_eq=self.kept, bounds=(0, None), method="highs", options=_FINE)
        if solution.x is None:
            return self.weights
        point = self._exact(np.maximum(solution.x, 0.0))
        return point if cost @ point < cost @ self.weights - _MOVED * np.abs(cost).max() * 1e-3 else self.weights

    def _exact(self, point: Float[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
        """The same vertex without the solver's tolerance: its weights solve the equations by themselves."""
        support = point > _LEAST
        exact = np.zeros_like(point)
        exact[support], _ = nnls(self.basis[support].T, self.kept)
        errors = [np.abs(weights @ self.basis - self.kept).max() for weights in (exact, point)]
        return exact if errors[0] <= errors[1] else point


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
