"""The verbs whose work is done in units, their options, and whether two of their runs are the same."""

import numpy as np

LINES = [" ".join(line) for line in np.random.default_rng(0).choice(list("abcdefgh"), (9, 4))]
HEADS = {"batch_size": 2, "steps": 1, "device": "cpu"}
OPTIONS = {
    "examples": {"heads": [(0, 1), (2, 3)], "k": 3, "limit": 40, "window": 12, "batch_size": 1, "device": "cpu"},
    "explain": {"limit": 6, "window": 12, "band": 4, "device": "cpu"},
    "align": {"targets": LINES[::-1], "batch_size": 1, "shown": 2, "device": "cpu"},
    "intervene": HEADS | {"limit": 7, "window": 16, "ablations": ["zero"], "why": False},
    "patch": HEADS,
}


def same(found, whole):
    """But for the folder's name."""
    found, whole = found.copy(), whole.copy()
    for results in (found, whole):
        del results.attrs["run"]
    return found.identical(whole)
