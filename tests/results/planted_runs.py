"""Runs made by hand, whose arrays are known: no model is loaded."""

import numpy as np
import xarray as xr

from attnscope.store.runs import RunFolder
from attnscope.store.units import Share, Task

SIGNATURE = {
    "model": {"name": "小さな[bold]模型", "class": "Bert", "sha256": "ab" * 32},
    "corpus": {"sha256": "0123456789abcdef"},
    "settings": {"statistics": ["band_sum", "entropy"], "window": 8, "limit": None},
    "versions": {"attnscope": "0.1.0"},
}
LAYERS, HEADS, OFFSETS = 2, 3, 5


def piece(first, texts):
    """Some texts of a scan; the second layer has one head less."""
    random = np.random.default_rng(first)
    bands = random.random((texts, LAYERS, HEADS, OFFSETS))
    bands[:, 1, 2] = np.nan
    return xr.Dataset(
        {
            "band_sum": (
                ("window", "layer", "head", "offset"),
                bands.astype(np.float32),
                {"long_name": "Sum of the weights", "units": "tokens"},
            ),
            "entropy": (("window", "layer", "head"), bands.sum(-1) / 3, {"long_name": "Entropy", "units": "nats"}),
            "length": ("window", np.arange(first, first + texts)),
        },
        {
            "window": np.arange(first, first + texts),
            "source": ("window", np.array([f"猫, {number}.txt" for number in range(texts)], dtype=object)),
            "layer": [0, 3],
            "layer_name": ("layer", np.array(["encoder.0", "encoder.3"], dtype=object)),
            "offset": np.arange(-2, 3),
        },
    )


def scan_run(path, sizes=(2, 3), *, finish=True):
    """A scan of several pieces, with names of kinds."""
    with RunFolder(path, {"command": "scan", **SIGNATURE}) as run:
        first = 0
        for texts in sizes:
            run.append(piece(first, texts), first)
            first += texts
        if finish:
            labels = np.arange(first * LAYERS * HEADS).reshape(first, LAYERS, HEADS) % 2
            labels[:, 1, 2] = -1
            names = np.array(["previous", "mixed"], dtype=object)
            kinds = {
                "label": (("window", "layer", "head"), labels),
                "centroid": (("cluster", "offset"), np.ones((2, 5))),
            }
            run.save("summary", xr.Dataset(kinds, {"cluster": names}, {"labels": "Head labels: previous: 3."}))
            run.finish(attributes={"padding": "Windows are measured one at a time."})
    return path


def explained_run(path):
    """A tree of two nodes and one below another, with text, truth values, lists and a number without dimensions."""
    waves = xr.Dataset(
        {
            "form": ("layer", np.array(["a|b", "猫"], dtype=object), {"long_name": "Form"}),
            "agree": (("layer", "head"), [[True, False], [False, True]]),
            "share": (("layer", "head"), [[0.1, np.nan], [np.inf, -0.0]]),
            "swapped": (("head", "layer"), [[1, 2], [3, 4]]),
            "chance": 1 / 3,
        },
        {"layer": [0, 1]},
        {"band": [3, 24], "one": [3], "seed": 0, "level": float("nan")},
    )
    with RunFolder(path, {"command": "explain", **SIGNATURE}) as run:
        run.save("verdict", waves)
        run.save("also-0", waves[["form"]].drop_attrs(deep=False))
        told = {"requested": [], "names": ["verdict"], "skipped": [["kernel", "no rotation"]]}
        also = [{"file": "also-0", "model": "other", "identity": "x"}]
        run.finish(analyses=told, attributes={"model": "m", "signature": run.signature.to_json()}, also=also)
    return path


#: A scan whose kinds are found from profiles alone, by tasks
WHOLE = {
    "command": "scan",
    **SIGNATURE,
    "settings": SIGNATURE["settings"] | {"statistics": ["band_sum"], "clusters": 2, "seed": 0},
}
UNITS = (range(4), range(4, 8), range(8, 12), range(12, 14))


def profiles(unit):
    """What clusters are found from."""
    return piece(unit.start, len(unit))[["band_sum"]].assign(length=("window", [8] * len(unit)))


def part_of(run, number, count, *, until=None):
    """What a task leaves: all that is its own; or, where it was killed, what it had until then."""
    task = Task(number, count)
    with RunFolder(task.folder(run), WHOLE) as part:
        share = Share(task.does)
        for unit in UNITS[:until]:
            if not share(unit):
                part.append(profiles(unit), unit.start)
        if until is None:
            part.finish(**share.state(), attributes={"model": "m", "padding": "One at a time."})
