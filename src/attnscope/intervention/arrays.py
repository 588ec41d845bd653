"""Weights in random order, random sets of heads and sparse regression, in NumPy alone."""

from collections.abc import Hashable, Sequence
from itertools import chain, combinations, groupby, product
from math import comb, prod
from operator import itemgetter

import numpy as np
from jaxtyping import Bool, Float

from attnscope.support.errors import AttnscopeError

#: Which keys each query may attend to; None for all
Allowed = Bool[np.ndarray, "query key"] | None
#: Heads, as (layer, head)
Heads = Sequence[tuple[int, int]]


def permuted_weights(
    weights: Float[np.ndarray, "query key"], generator: np.random.Generator, allowed: Allowed = None
) -> Float[np.ndarray, "query key"]:
    """Permute the weights of each row independently among the keys that it may attend to.

    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.1.
    """
    allowed = np.ones(weights.shape, dtype=bool) if allowed is None else allowed
    targets = np.argsort(~allowed, axis=1, kind="stable")  # the keys that a row may attend to come first
    # 2 is above every draw in [0, 1): masked keys stay last
    order = np.argsort(np.where(allowed, generator.random(weights.shape), 2.0), axis=1)
    shuffled = np.empty_like(weights)
    np.put_along_axis(shuffled, targets, np.take_along_axis(weights, order, 1), 1)
    return shuffled


_FOLDS = 5


def in_layers(heads: Heads) -> list[list[tuple[int, int]]]:
    """The heads of each layer, in groups."""
    return [[*group] for _, group in groupby(heads, key=itemgetter(0))]


def sets_like(chosen: Heads, groups: Sequence[Heads], draws: int, generator: np.random.Generator) -> list[Heads]:
    """Random sets with as many heads of each group, other than the chosen one; all, where there are no more."""
    if not draws:
        return []
    sizes = [len({*group} & {*chosen}) for group in groups]
    possible = prod(comb(len(group), size) for group, size in zip(groups, sizes, strict=True))
    if possible == 1:
        names = ", ".join(f"{layer}.{head}" for layer, head in chosen)
        raise AttnscopeError(f"found no other set like {names}, which are all heads there: leave out random (--random)")
    if possible - 1 <= draws:
        every = product(*(combinations(group, size) for group, size in zip(groups, sizes, strict=True)))
        return [[*chain(*parts)] for parts in every if {*chain(*parts)} != {*chosen}]
    drawn: list[Heads] = []
    while len(drawn) < draws:
        parts = [generator.permutation(len(group))[:size] for group, size in zip(groups, sizes, strict=True)]
        one = [group[int(at)] for group, part in zip(groups, parts, strict=True) for at in part]
        if {*one} != {*chosen}:
            drawn.append(one)
    return drawn


def random_sets(
    shape: tuple[int, ...], heads: int, removed: int, generator: np.random.Generator
) -> Bool[np.ndarray, "... head"]:
    """Random sets of `removed` heads each, balanced: numbers of sets per head differ by at most one."""
    sets = np.zeros((int(np.prod(shape)), heads), dtype=bool)
    # heads left in a shuffled round: each is drawn once before any is drawn again
    waiting: list[int] = []
    for row in sets:
        while row.sum() < removed:
            if not waiting:
                waiting = generator.permutation(heads).tolist()
            fresh = next((number for number, head in enumerate(waiting) if not row[head]), None)
            if fresh is None:  # all waiting heads are in the set already: append the next round
                waiting += generator.permutation(heads).tolist()
                continue
            row[waiting.pop(fresh)] = True
    return sets.reshape(*shape, heads)


def sparse_effects(
    sets: Bool[np.ndarray, "measurement head"],
    changes: Float[np.ndarray, " measurement"],
    groups: Sequence[Hashable] | None = None,
) -> Float[np.ndarray, " head"]:
    r"""Effect of each head, by sparse regression on the changes that sets of heads cause."""
    from sklearn.linear_model import Lasso, LassoCV
    from sklearn.model_selection import GroupKFold

    design = sets.astype(float)
    if not np.ptp(changes):
        return np.zeros(sets.shape[1])
    labels = np.arange(len(sets)) if groups is None else np.unique(np.array(groups, dtype=str), return_inverse=True)[1]
    folds = min(_FOLDS, len(np.unique(labels)))
    if folds < 2:  # noqa: PLR2004 one document: split by measurements
        labels, folds = np.arange(len(sets)), min(_FOLDS, len(sets))
    splits = list(GroupKFold(folds).split(design, changes, labels))
    # no intercept: without removed heads nothing changes. The penalty is chosen over documents (Tibshirani 1996)
    chosen = LassoCV(fit_intercept=False, cv=splits, alphas=50, max_iter=20_000).fit(design, changes)
    return np.asarray(Lasso(alpha=chosen.alpha_, fit_intercept=False, max_iter=20_000).fit(design, changes).coef_)
