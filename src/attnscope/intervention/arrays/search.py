"""Which heads matter, from sets of heads taken out together: a sparse regression."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float

_FOLDS = 5


def random_sets(
    shape: tuple[int, ...], heads: int, removed: int, generator: np.random.Generator
) -> Bool[np.ndarray, "... head"]:
    """Random sets of `removed` heads each; every head is in as many of them as any other, or in one more."""
    count = int(np.prod(shape))
    sets = np.zeros((count, heads), dtype=bool)
    waiting: list[int] = []
    for row in sets:
        while row.sum() < removed:
            if not waiting:
                waiting = generator.permutation(heads).tolist()
            fresh = next((place for place, head in enumerate(waiting) if not row[head]), None)
            if fresh is None:  # what waits is in the set already: the next round's heads stand behind it
                waiting += generator.permutation(heads).tolist()
                continue
            row[waiting.pop(fresh)] = True
    return sets.reshape(*shape, heads)


def sparse_effects(
    sets: Bool[np.ndarray, "measurement head"],
    changes: Float[np.ndarray, " measurement"],
    groups: Sequence[Hashable] | None = None,
) -> Float[np.ndarray, " head"]:
    r"""Effect of each head, from the changes that sets of heads cause."""
    design = sets.astype(float)
    if not np.ptp(changes):
        return np.zeros(sets.shape[1])
    labels = np.arange(len(sets)) if groups is None else np.unique(np.array(groups, dtype=str), return_inverse=True)[1]
    folds = min(_FOLDS, len(np.unique(labels)))
    if folds < 2:  # noqa: PLR2004 one document: measurements stand for themselves
        labels, folds = np.arange(len(sets)), min(_FOLDS, len(sets))
    from sklearn.linear_model import Lasso, LassoCV
    from sklearn.model_selection import GroupKFold

    splits = list(GroupKFold(folds).split(design, changes, labels))
    chosen = LassoCV(fit_intercept=False, cv=splits, alphas=50, max_iter=20_000).fit(design, changes)
    return np.asarray(Lasso(alpha=chosen.alpha_, fit_intercept=False, max_iter=20_000).fit(design, changes).coef_)
