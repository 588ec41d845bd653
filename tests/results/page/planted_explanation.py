"""A made-up explanation of any size: each analysis has the names and shapes of a real one, and known numbers.

Heads with an even number look one token to the left, clearly so; the others at no offset in particular.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import xarray as xr

from attnscope.results.reports import report_of, write_page

TERMS = ["PP", "PC", "CP", "CC"]
CHANGES = ["words-shuffled", "positions-zero", "positions-reversed"]
SKIPPED = {"rotation_effect": "</script><img src=x onerror=alert(1)> & so on", "bias_effect": "no bias"}
GRID = ("layer", "head")
REACH = 10


def explain_page_of(tree, path, heads=None):
    """Write the page of an explanation."""
    report = report_of("explain", tree)
    return write_page(report if heads is None else replace(report, heads=heads), path)


def explanation(layers=3, heads=4, positions=64, columns=8, seed=0):
    """A tree with every node that `explain` can give."""
    rng = np.random.default_rng(seed)
    frequency = np.arange(positions // 2 + 1)
    looks = np.broadcast_to(np.arange(heads) % 2 == 0, (layers, heads))
    share = np.where(looks, 0.97, 0.1) - 0.01 * np.arange(layers)[:, None]
    peak = np.where(looks, 0.9, 0.1) - 0.02 * np.arange(layers)[:, None] - 0.001 * np.arange(heads)
    nodes = {
        "forms": xr.Dataset(
            {
                "form": ("layer", np.array(["bilinear"] * layers, dtype=object)),
                "reason": ("layer", np.array([""] * layers, dtype=object)),
                "error": ("layer", np.full(layers, 2e-7)),
            }
        ),
        "position_spectrum": _spectrum(frequency, positions, rng),
        "position_pca": xr.Dataset({"cumulative_share": ("component", 1 - 0.8 ** np.arange(1, positions + 1))}),
        "position_cca": _correlations(layers, rng),
        "waves": _waves(layers, heads, columns, positions, rng),
        "spectra": xr.Dataset(
            {
                "maximum": (("layer", "side", "frequency"), rng.gamma(2, size=(layers, 3, len(frequency)))),
                "null_mean": (("layer", "side"), np.full((layers, 3), 2.0)),
            },
            coords={"side": ["X", "query", "key"], "frequency": frequency},
        ),
        "cross_spectrum": _cross_spectrum(layers, heads, frequency, positions, rng),
        "phase_map": xr.Dataset(
            {
                "energy": ((*GRID, "frequency", "angle"), rng.gamma(1, size=(layers, heads, len(frequency), 64))),
                "line_shift": (GRID, np.where(looks, 1.0, np.nan)),
                "line_chance": (GRID, np.where(looks, 0.005, 0.5)),
            },
            coords={"frequency": frequency, "angle": np.linspace(-np.pi, np.pi, 65)[1:] - np.pi / 64},
            attrs={"positions": positions},
        ),
        "cross_correlation": _cross_correlation(layers, heads, columns, positions, rng),
        "position_content": _content(looks, share, peak, rng),
        "rotation_effect": _scheme(["model", "none", "fast"], layers, heads, rng),
        "bias_effect": _scheme(["model", "without_bias"], layers, heads, rng),
        "interventions": _interventions(looks, rng),
        "verdict": xr.Dataset(
            {
                "offset_of_weights": (GRID, np.where(looks, -1.0, 3.0)),
                "offset_of_spectrum": (GRID, np.where(looks, -0.9, -4.0)),
                "offset_of_correlation": (GRID, np.where(looks, -1.1, 0.0)),
                "prefers": (GRID, np.ones((layers, heads), dtype=bool)),
                "positional": (GRID, looks.copy()),
                "comparable": (GRID, looks.copy()),
                "agree": (GRID, looks.copy()),
                "chance": (GRID, np.where(looks, 0.5, np.nan)),
                "weight_level": (GRID, np.full((layers, heads), 0.1)),
                "position_share": (GRID, share),
                "peak_weight": (GRID, peak),
                "coherence": (GRID, np.where(looks, 0.95, 0.3)),
            }
        ),
        "controls": _controls(heads),
    }
    for name, node in nodes.items():
        nodes[name] = node.assign_coords({dim: np.arange(node.sizes[dim]) for dim in GRID if dim in node.dims})
    tree = xr.DataTree.from_dict(nodes)
    signature = {"settings": {"windows": 12, "window": positions}, "note": "<script>alert(2)</script>"}
    skipped = json.dumps(SKIPPED)
    tree.attrs = {"model": "planted <b>model</b>", "skipped": skipped, "signature": json.dumps(signature)}
    return tree


def without(tree, *nodes):
    """The same explanation, less some analyses."""
    kept = {path: node for path, node in tree.to_dict().items() if path.split("/")[1] not in nodes}
    return xr.DataTree.from_dict(kept)


def only(tree, *nodes):
    """A copy with these analyses alone: its page takes a part of the time that all figures take."""
    return without(tree, *(name for name in tree.children if name not in nodes))


def _spectrum(frequency, positions, rng):
    mean = np.ones((2, len(frequency))) + 0.05 * rng.random((2, len(frequency)))
    mean[0, 8] = 5.0
    found = {"is_peak": (("table", "frequency"), mean == 5)}
    for name, factor, null in (("mean", 1, 1), ("lower_quartile", 0.7, 0.6), ("upper_quartile", 1.3, 1.4)):
        found[name] = (("table", "frequency"), mean * factor)
        found[f"null_{name}"] = ("table", np.full(2, float(null)))
    coords = {"table": ["positions", "words"], "frequency": frequency}
    return xr.Dataset(found, coords, {"positions": positions})


def _correlations(layers, rng):
    values = np.sort(rng.random((layers, 20)))[:, ::-1]
    found = {}
    for kind, correlation in (("", values), ("raw_", np.sqrt(values))):
        found[f"{kind}correlation"] = (("layer", "component"), correlation)
        found[f"{kind}null_correlation"] = ("layer", np.full(layers, 0.2))
        found[f"{kind}strong_components"] = ("layer", (values > 0.5).sum(1))
    return xr.Dataset(found, attrs={"strong": 0.5})


def _waves(layers, heads, columns, positions, rng):
    dims = (*GRID, "column")
    shape = (layers, heads, columns)
    periodic = np.zeros(shape, dtype=bool)
    periodic[:, ::2, :4] = True
    partner = np.full(shape, -1)
    partner[:, ::2, :4] = [1, 0, 3, 2]
    frequency = np.where(periodic, 8, rng.integers(1, positions // 2, shape))
    return xr.Dataset(
        {
            "query_frequency": (dims, frequency),
            "key_frequency": (dims, frequency),
            "periodic": (dims, periodic),
            "partner": (dims, partner),
            "importance": (dims, rng.gamma(2, size=shape)),
            "singular_value": (dims, np.sort(rng.random(shape))[..., ::-1]),
            "periodic_columns": (GRID, periodic.sum(-1)),
            "curve_column": ((*GRID, "curve"), np.broadcast_to(np.arange(4), (layers, heads, 4))),
            "query_curve": ((*GRID, "curve", "position"), rng.normal(size=(layers, heads, 4, positions))),
            "key_curve": ((*GRID, "curve", "position"), rng.normal(size=(layers, heads, 4, positions))),
            "null_periodic_columns": ((*GRID, "permutation"), np.ones((layers, heads, 5), dtype=int)),
        },
        attrs={"positions": positions},
    )


def _cross_spectrum(layers, heads, frequency, positions, rng):
    dims, shape = (*GRID, "frequency"), (layers, heads, len(frequency))
    offset = np.full(shape, -1.0)
    offset[..., [0, -1]] = np.nan
    return xr.Dataset(
        {
            "offset": (dims, offset),
            "cross_amplitude": (dims, rng.gamma(2, size=shape)),
            "coherence": (dims, rng.random(shape)),
            "band_offset": (GRID, np.full((layers, heads), -1.0)),
            "band_offset_chance": (GRID, np.full((layers, heads), 0.005)),
            "in_band": (dims, np.broadcast_to((frequency >= 3) & (frequency < frequency[-1]), shape)),
        },
        coords={"frequency": frequency},
        attrs={"positions": positions},
    )


def _cross_correlation(layers, heads, columns, positions, rng):
    offset = np.arange(1 - positions, positions)
    trace = np.broadcast_to(100.0 * np.exp(-np.abs(offset + 1)), (layers, heads, len(offset)))
    lines = rng.uniform(-1, 1, size=(layers, heads, columns, len(offset)))
    return xr.Dataset(
        {
            "correlation": ((*GRID, "column", "offset"), lines),
            "trace": ((*GRID, "offset"), trace),
            "trace_peak_offset": ((*GRID, "range"), np.full((layers, heads, 2), -1.0)),
            "trace_peak_clear": (GRID, np.ones((layers, heads), dtype=bool)),
            "weight_argmax": (GRID, np.broadcast_to(np.arange(heads), (layers, heads))),
            "score_argmax": (GRID, np.broadcast_to(np.arange(heads) // 4 * 4, (layers, heads))),
            "spearman": (GRID, rng.uniform(-1, 1, size=(layers, heads))),
        },
        coords={"offset": offset, "range": ["near", "all"]},
    )


def _controls(heads):
    there = np.where(np.arange(heads) % 2, np.nan, 1)[:, None]
    found = {"completed_shift": ((*GRID, "completion"), np.ones((1, heads, 3)))}
    for name, values in (("coherence_at_offset", [0.9, 0.1, 0.0, 0.05]), ("band_offset", [-1.0, 7.0, 0.0, -20.0])):
        found[name] = ((*GRID, "control"), (there * values)[None])
    return xr.Dataset(found, {"control": ["head", "other key", "permuted 0", "random 0"]})


def _profile(looks, rng):
    """A mean weight at each offset: what the head looks at, and a little noise."""
    values = 0.02 + 0.01 * rng.random((*looks.shape, 2 * REACH + 1))
    values[..., REACH - 1] = np.where(looks, 0.8, 0.03)
    return values


def _content(looks, share, peak, rng):
    profile = _profile(looks, rng)
    parts = np.stack([share, 0 * share, 0 * share, 1 - share], -1)
    found = {
        "profile_position": ((*GRID, "offset"), 0.9 * profile),
        "target": (GRID, np.full(looks.shape, -1)),
        "mass": (GRID, peak),
    }
    for end, change in (("", 0.0), ("_low", -0.01), ("_high", 0.01)):
        found["profile" + end] = ((*GRID, "offset"), profile + change)
        found["share" + end] = ((*GRID, "term"), parts + change)
        found["position_share" + end] = (GRID, share + change)
        found["shapley" + end] = ((*GRID, "term"), 0.8 * parts + change)
    return xr.Dataset(found, coords={"term": TERMS, "offset": np.arange(-REACH, REACH + 1)})


def _scheme(variants, layers, heads, rng):
    looks = np.ones((len(variants), layers, heads), dtype=bool)
    looks[1:] = False
    profile, dims = _profile(looks, rng), ("variant", *GRID, "offset")
    ends = (("", 0.0), ("_low", -0.01), ("_high", 0.01))
    found = {"profile" + end: (dims, profile + change) for end, change in ends}
    return xr.Dataset(found, {"variant": variants, "offset": np.arange(-REACH, REACH + 1)})


def _interventions(looks, rng):
    before = _profile(looks, rng)
    after = np.stack([before, np.full_like(before, 0.03), before[..., ::-1]])
    by_id = np.stack([np.full_like(before, np.nan)] * 2 + [before])
    found = {
        "profile_before": ((*GRID, "offset"), before),
        "profile_after": (("change", *GRID, "offset"), after),
        "profile_by_id": (("change", *GRID, "offset"), by_id),
        "mass_before": (GRID, before[..., REACH - 1]),
        "mass_after": (("change", *GRID), after[..., REACH - 1]),
        "target": (GRID, np.full(looks.shape, -1)),
    }
    for end, change in (("", 0.0), ("_low", -0.01), ("_high", 0.01)):
        found["mass_change" + end] = (("change", *GRID), (after - before)[..., REACH - 1] + change)
    return xr.Dataset(found, {"change": CHANGES, "offset": np.arange(-REACH, REACH + 1)})
