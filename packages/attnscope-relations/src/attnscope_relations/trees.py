"""Dependency trees: heads of words, of the largest sum of scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def is_tree(heads: Sequence[int | None]) -> bool:
    """Whether heads, -1 for the root and None for words outside, are one tree: one root, which every word reaches."""
    within = [word for word, head in enumerate(heads) if head is not None]
    if sum(heads[word] == -1 for word in within) != 1:
        return False
    for word in within:
        at: int | None = word
        for _ in within:
            at = heads[at] if at is not None and at >= 0 else at
        if at != -1:
            return False
    return True


def arborescence(scores: np.ndarray, root: int) -> list[int]:
    """The head of each word in the tree with the largest sum of scores ``(word, head)``; -1 for the root.

    The tree is a maximum spanning arborescence (Chu and Liu 1965, Edmonds 1967), as McDonald et al. (2005) parse.
    """
    allowed = scores.astype(np.float64)
    np.fill_diagonal(allowed, -np.inf)
    heads = allowed.argmax(1).tolist()
    heads[root] = -1
    if is_tree(heads):  # the largest of each word, which no tree is above
        return heads
    import networkx as nx

    graph = nx.DiGraph()
    # one head a word: a constant of a word changes no tree, and weights above 0 leave no word without a head
    above = allowed - np.where(np.isfinite(allowed), allowed, np.inf).min(1, keepdims=True) + 1
    words = range(len(scores))
    graph.add_weighted_edges_from(
        (head, word, above[word, head]) for word in words for head in words if word not in {head, root}
    )
    heads = [-1] * len(scores)
    for head, word in nx.maximum_spanning_arborescence(graph).edges:
        heads[word] = head
    return heads
