"""Patching without a model: eight pairs, two blocks by four positions, one of which carries the difference."""

import numpy as np
import xarray as xr

from attnscope.intervention.patch import patched_of


def planted_patching(change=3.5):
    generator = np.random.default_rng(0)
    differences = generator.normal(-2, 0.05, (8, 2, 4))
    differences[:, 0, 2] += change
    texts = {"clean": "She <b>is</b> sad", "corrupted": "He is sad", "answer": " she", "wrong": " he"}
    tokens = {"clean": [" She", " is", " sad", "."], "corrupted": [" He", " is", " sad", "."]}
    pairs = xr.Dataset(
        {
            "difference": (("pair", "block", "position"), differences),
            "clean": ("pair", np.full(8, 2.0)),
            "corrupted": ("pair", np.full(8, -2.0)),
        },
        coords={
            "pair": np.arange(1, 9),
            "block": [0, 1],
            **{f"{name}_text": ("pair", np.array([text] * 8, dtype=object)) for name, text in texts.items()},
            **{
                f"{name}_token": (("pair", "position"), np.array([row] * 8, dtype=object))
                for name, row in tokens.items()
            },
        },
        attrs={"direction": "denoising", "rounding": 1e-4, "what": "residual"},
    )
    tree = xr.DataTree.from_dict({"pairs": pairs, "patched": patched_of(pairs)})
    tree.attrs = {"model": "made-up", "signature": "{}"}
    return tree
