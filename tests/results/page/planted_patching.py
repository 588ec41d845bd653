"""Patching without a model: eight pairs, two blocks by four positions, one of which carries the difference."""

import numpy as np
import xarray as xr

from attnscope.intervention.patch import patched_of


def planted_patching(change=3.5):
    generator = np.random.default_rng(0)
    differences = generator.normal(-2, 0.05, (8, 2, 4))
    differences[:, 0, 2] += change
    texts = {
        name: [f"{text}, {n}" for n in range(8)]
        for name, text in (("clean", "She <b>is</b> sad"), ("corrupted", "He is sad"))
    }
    texts |= {"answer": [" she"] * 8, "wrong": [" he"] * 8}  # equal pairs would count once
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
            **{f"{name}_text": ("pair", np.array(each, dtype=object)) for name, each in texts.items()},
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
