"""An intervention without a model: two layers of three heads, one of which matters, if any."""

import json

import numpy as np
import xarray as xr

from attnscope.intervention.effects import agreement_of, heads_of


def planted_intervention(effect=0.5, wild=0.0):
    """Head 0.1 has the effect; head 1.2 one that is as large as wild in a single text."""
    generator = np.random.default_rng(0)
    dims = ("window", "ablation", "layer", "head")
    ablations = ["zero", "mean", "resample"]
    changes = generator.normal(0, 0.02, (12, 3, 2, 3))
    changes[:, :, 0, 1] += effect
    changes[0, :, 1, 2] += 12 * wild
    coords = {
        "source": ("window", [f"text {number}" for number in range(12)]),
        "ablation": ablations,
        "layer": [0, 1],
        "layer_name": ("layer", ["first", "second"]),
        "layer_kind": ("layer", ["self", "self"]),
        "head": [0, 1, 2],
        "estimator": ["attribution", "integrated", "eap_ig"],
    }
    effects = xr.Dataset(
        {
            "loss_change": (dims, changes),
            "kl": (dims, np.abs(changes)),
            "accuracy_change": (dims, -changes),
            "estimate": (("window", "estimator", *dims[1:]), np.stack([changes] * 3, 1)),
            "importance": (("window", "layer", "head"), np.abs(changes[:, 0])),
            "loss": ("window", np.full(12, 2.0)),
            "accuracy": ("window", np.full(12, 0.5)),
        },
        coords=coords,
    )
    profile = generator.dirichlet(np.ones(5), (2, 3))
    where = xr.Dataset(
        {
            "profile": (("layer", "head", "offset"), profile),
            "label": (("layer", "head"), np.array([["next", "mixed", "previous"]] * 2, dtype=object)),
            "peak_offset": (("layer", "head"), profile.argmax(-1) - 2.0),
            "peak_weight": (("layer", "head"), profile.max(-1)),
        },
        coords={"layer": [0, 1], "head": [0, 1, 2], "offset": np.arange(-2, 3)},
    )
    change = generator.normal(0.1, 0.1, (2, 3))
    grid = ("layer", "head")
    shuffled = xr.Dataset(
        {
            "shuffled_loss": (grid, change),
            "shuffled_loss_low": (grid, change - 0.1),
            "shuffled_loss_high": (grid, change + 0.1),
            "shuffled_shown": (grid, change > 0.15),
            "shuffled_tested": (grid, np.ones((2, 3), dtype=bool)),
        },
        coords={"layer": [0, 1], "head": [0, 1, 2]},
        attrs={"texts": 8},
    )
    tree = xr.DataTree.from_dict(
        {
            "shuffled": shuffled,
            "effects": effects,
            "heads": heads_of(effects),
            "agreement": agreement_of(effects),
            "where": where,
        }
    )
    tree.attrs = {
        "model": "made-up",
        "prediction": "masked",
        "skipped": json.dumps({"why": "no positions"}),
        "signature": json.dumps({"command": "intervene", "settings": {"window": 48}}),
    }
    return tree
