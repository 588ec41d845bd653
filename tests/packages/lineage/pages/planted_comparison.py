"""A made-up comparison whose every number is known, with names and words that want to be HTML and formulas."""

import json

import numpy as np
import xarray as xr

HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = ["fixed vector", f"<b>add</b> $x$ {HOSTILE}", "Transformer"]
SOURCE = ["monday", HOSTILE, "$y$", "猫", "twenty", "one"]
TARGET = ["1", "20", "&amp;", "猫", "Mo"]


def planted(*, known=True, attention=True, logs=True, intervals=True):
    buckets = ["1-10", "11-20", "21-30", "31-40", "41-50", "51+"]
    by_length = np.array([[97.0, 81, 44, 25, 16, 11], [99, 99, 98, 98, 97, 97], [98, 97, 97, 95, 94, 90]])
    value = np.array([30.5, 98.2, 95.1])
    wide = np.stack([value, value / 2 + 40], -1)  # BLEU, chrF
    lengths = np.stack([by_length, by_length], 1)
    gap = 1.5 if intervals else np.nan
    scores = xr.Dataset(
        {
            "score": (("system", "metric"), wide),
            "lower": (("system", "metric"), wide - gap),
            "upper": (("system", "metric"), wide + gap),
            "difference": (("system", "metric"), np.where(np.arange(3)[:, None], wide - wide[:1], np.nan)),
            "difference_lower": (("system", "metric"), wide - wide[:1] - gap),
            "difference_upper": (("system", "metric"), wide - wide[:1] + gap),
            "p_value": (("system", "metric"), [[np.nan] * 2, [0.001] * 2, [0.25] * 2]),
            "score_by_length": (("system", "metric", "bucket"), lengths),
            "lower_by_length": (("system", "metric", "bucket"), lengths - 2 * gap),
            "upper_by_length": (("system", "metric", "bucket"), np.minimum(lengths + 2 * gap, 100)),
            "sentences": ("bucket", [85, 80, 82, 83, 84, 86]),
            "parameters": ("system", [123_456, 234_567, 345_678]),
            "sentences_cut": ("system", [3, 0, 0]),
            "sentences_per_second": ("system", [51.26, 41.0, 13.0]),
            "training_tokens_per_second": ("system", [10_500.0, 7_654.0, 9_000.0]),
            "training_tokens": ("system", [9e5, 9e5, 1.8e6]),
            "training_seconds": ("system", [90.0, 120.0, 150.0]),
        },
        {"system": NAMES, "metric": ["BLEU", "chrF"], "bucket": buckets},
        {"sentences": 500, "length_in": "words", "signature": '{"BLEU": "nrefs:1"}'},
    )
    if known:
        for name, values in (
            ("error_rate", [np.nan, 0.1197, 0.4]),
            ("error_rate_lower", [np.nan, 0.1012, 0.35]),
            ("error_rate_upper", [np.nan, 0.1381, 0.45]),
            ("precision", [np.nan, 0.9, 0.6]),
            ("diagonal", [np.nan, 0.5, 0.5]),
            ("chance", [np.nan, 0.8, 0.8]),
            ("chance_level", [np.nan, 0.75, 0.75]),
        ):
            scores[f"alignment_{name}"] = ("system", values)
    updates = np.array([[150, 300, 450], [150, 300, 450], [300, 600, np.nan]])
    measured = {
        "bleu": np.array([[2.0, 15, 28], [3, 60, 98], [20, 95, np.nan]]),
        "loss": np.array([[2.0, 1.5, 1.2], [1.6, 0.5, 0.02], [1.2, 0.1, np.nan]]),
    }
    unknown = {f"{name}_{end}": by * np.nan for name, by in measured.items() for end in ("lower", "upper")}  # one seed
    curves = xr.Dataset(
        {
            **{name: (("system", "validation"), by) for name, by in (measured | unknown).items()},
            "loss_of_seed": (("system", "seed", "validation"), measured["loss"][:, None]),
            "updates": (("system", "validation"), updates),
            "tokens": (("system", "validation"), updates * 1000),
            "seconds": (("system", "validation"), updates / 4),
        },
        {"system": NAMES},
    ).isel(validation=slice(None if logs else 0))
    weights = np.random.default_rng(0).dirichlet(np.full(len(SOURCE), 0.2), (3, len(TARGET)))
    weights[0 if attention else slice(None)] = np.nan
    alignment = xr.Dataset(
        {
            "weights": (("system", "target_word", "source_word"), weights),
            "read_from": ("system", ["no attention", "layer 0, head 0", "layer 1, head 3"]),
            "translation": ("system", [f"1 {HOSTILE}", "1 20", "&amp;"]),
            "source": ("source_word", SOURCE),
            "target": ("target_word", TARGET),
        },
        {"system": NAMES},
        {"line": 7},
    )
    if known:
        alignment["gold"] = (("target_word", "source_word"), np.eye(len(TARGET), len(SOURCE), dtype=bool))
    share = np.linspace(0.05, 0.15, 10) * np.ones((len(NAMES), 1))
    ends = {"share": share, "lower": share - 0.01, "upper": share + 0.01}
    gradients = xr.Dataset({name: (("system", "tenth"), values) for name, values in ends.items()})
    gradients = gradients.assign_coords(system=list(NAMES), tenth=range(1, 11)).assign(
        sentences=("system", [9] * len(NAMES))
    )
    nodes = {"scores": scores, "curves": curves, "alignment": alignment, "gradients": gradients}
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = {"signature": json.dumps({"by": "<i>hand</i>"}), "run": "somewhere"}
    return tree
