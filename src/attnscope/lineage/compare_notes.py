"""Learning curves and rates, from the logs of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnscope.lineage.checkpoints import read_log
from attnscope.support.numbers import count, percent

_METRICS = ("bleu", "loss")
_SEEN = ("tokens", "seconds")


def learning_curves(folders: Mapping[str, Path]) -> xr.Dataset:
    """How far each training was at each of its validations."""
    curves = [_curve(read_log(folder)) for folder in folders.values()]
    longest = max((len(curve["updates"]) for curve in curves), default=0)
    return xr.Dataset(
        {
            name: (
                ("system", "validation"),
                np.stack(
                    [np.pad(curve[name], (0, longest - len(curve[name])), constant_values=np.nan) for curve in curves]
                ),
            )
            for name in (*_METRICS, "updates", *_SEEN)
        },
        coords={"system": list(folders)},
    )


def training_effort(folder: Path) -> dict[str, float]:
    """What a training took: median rate of the log's lines, target tokens and seconds in all; NaN without a log."""
    lines = [line for line in read_log(folder) if "tokens_per_second" in line]
    if not lines:
        return dict.fromkeys(("training_tokens_per_second", "training_tokens", "training_seconds"), float("nan"))
    return {
        "training_tokens_per_second": float(np.median([line["tokens_per_second"] for line in lines])),
        "training_tokens": float(lines[-1]["tokens"]),
        "training_seconds": float(lines[-1]["seconds"]),
    }


def _curve(log: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    looks = [line for line in log if "valid_loss" in line]
    steps = [{"update": 0, "tokens": 0, "seconds": 0.0}, *(line for line in log if "tokens" in line)]
    updates = np.array([line["update"] for line in looks], dtype=np.float64)
    at = [line["update"] for line in steps]
    seen = {name: np.interp(updates, at, [line[name] for line in steps]) for name in _SEEN}
    metrics = {
        name: np.array([line.get(f"valid_{name}", np.nan) for line in looks], dtype=np.float64) for name in _METRICS
    }
    return {"updates": updates, **seen, **metrics}


def error_rate_note(scores: xr.Dataset) -> str:
    """Say what the alignment error rates of a comparison are, and what needs no model to reach."""
    said = (
        "AER: links of the best head against the known ones, on sentences on which the head was not chosen, with its "
        "95% interval over sentences."
    )
    diagonal, chance, level = (scores[f"alignment_{name}"] for name in ("diagonal", "chance", "chance_level"))
    if diagonal.isnull().all():
        return said
    return (
        f"{said} To compare: the diagonal {percent(float(diagonal.mean()))}, random words "
        f"{percent(float(chance.mean()))} (below {percent(float(level.mean()))} in 1 of 100)."
    )


def cut_sentences(scores: xr.Dataset) -> list[str]:
    """Of which systems how many sentences were cut."""
    cuts = zip(scores["system"].values, scores["sentences_cut"].values, strict=True)
    return [
        f"{name}: {count(int(cut), 'sentence')} longer than it was trained for {'was' if cut == 1 else 'were'} cut"
        for name, cut in cuts
        if cut
    ]
