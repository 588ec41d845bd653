"""What a finished training ended with and how it came there, read from its folder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from attnscope.store import OwnedFolder, Signature
from attnscope.training._log import read_log

METRICS = {
    "loss": ("loss on the validation text", "nats per token"),
    "bleu": ("BLEU of greedy translations of the validation text", "points"),
    "alignment_error_rate": ("alignment error rate of the best head on the generated task", "share"),
    "alignment_error_rate_lower": ("lower end of its 95% interval over sentence pairs", "share"),
    "alignment_error_rate_upper": ("upper end of its 95% interval over sentence pairs", "share"),
    "alignment_diagonal": ("alignment error rate of the diagonal", "share"),
    "alignment_chance": ("mean alignment error rate of links to random words", "share"),
    "alignment_chance_level": (
        "alignment error rate that links to random words go below in 1 of 100",
        "share",
    ),
}
_LOGGED = {
    "loss": (
        "training_loss",
        "loss since the entry before, with smoothed targets and what R-Drop adds",
        "nats per token",
    ),
    "learning_rate": ("learning_rate", "learning rate", "1"),
    "tokens_per_second": ("tokens_per_second", "target tokens per second", "tokens/s"),
    "epoch": ("epoch", "epoch, from 0", "1"),
    "tokens": ("tokens", "target tokens seen", "tokens"),
    "seconds": ("seconds", "seconds of training", "s"),
}
_VALIDATED = {"valid_loss": "validation_loss", "valid_bleu": "validation_bleu"}


def training_results(folder: OwnedFolder) -> xr.Dataset:
    """The result of `train`, of a folder whose training is finished.

    Raises
    ------
    AttnscopeError
        If the log is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnscope.training._log import Log
    >>> with tempfile.TemporaryDirectory() as place, OwnedFolder(Path(place), "train") as folder:
    ...     log = Log(folder)
    ...     told = {"learning_rate": 0.1, "tokens_per_second": 1e4, "epoch": 0, "tokens": 900, "seconds": 1.5}
    ...     for update, loss in ((10, 5.5), (20, 4.25)):
    ...         log.write(update, loss=loss, **told)
    ...     log.close()
    ...     signature = json.loads(Signature("train", model={"name": "recurrent"}).to_json())
    ...     folder.write({}, signature=signature, metrics={"loss": 4.0, "bleu": 2.5})
    ...     results = training_results(folder)
    >>> results.bleu.item(), results.training_loss.sel(training_update=20).item()
    (2.5, 4.25)
    """
    log = read_log(folder.path)
    metrics: dict[str, float] = folder.state["metrics"]
    dataset = xr.Dataset(
        {name: ((), value, _told(*METRICS[name])) for name, value in metrics.items()}
        | _curves([line for line in log if "tokens" in line])
        | _validations([line for line in log if "valid_loss" in line])
    )
    signature = Signature.of(folder.state["signature"])
    told = {name: line[name] for line in log for name in ("chosen", "left_out") if name in line}
    dataset.attrs = {"signature": signature.to_json(), "model": signature.name} | {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()
    }
    dataset.encoding["source"] = str(folder.path)
    return dataset


def _curves(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What the log says of training, by update."""
    logged = {
        name: ("training_update", np.array([line[key] for line in lines]), _told(long_name, units))
        for key, (name, long_name, units) in _LOGGED.items()
    }
    return logged | {
        "training_update": ("training_update", np.array([line["update"] for line in lines], dtype=np.int64))
    }


def _validations(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What the log says of validations; each has the number of its update."""
    curves: dict[str, Any] = {
        name: ("validation_update", np.array([line[key] for line in lines]), _told(*METRICS[key[6:]]))
        for key, name in _VALIDATED.items()
        if lines and key in lines[0]
    }
    return curves | {
        "validation_update": (
            "validation_update",
            np.array([line["update"] for line in lines], dtype=np.int64),
        )
    }


def _told(long_name: str, units: str) -> dict[str, str]:
    return {"long_name": long_name, "units": units}
