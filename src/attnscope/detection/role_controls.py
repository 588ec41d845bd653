"""The same model with weights that know nothing: what any head of such a shape gives."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.capture.borrow import quiet
from attnscope.detection.role import ROLES
from attnscope.measure.documents import interval, units_of
from attnscope.measure.quantities import EQUAL
from attnscope.measure.stored import notes_of
from attnscope.results.schema import Finding, Quantity, Report, Row, Table, rows_of, value_of
from attnscope.store.runs import skipped_of
from attnscope.support.arguments import reads, validated
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope.support.state import own_random_numbers

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from transformers import PreTrainedModel

_MATRIX = 2

#: By name: what the weights are, in words.
CONTROLS = {
    "initialised": "drawn anew, as before training",
    "shuffled": "those of the model, each matrix in a random order",
}


@validated
def choose_controls(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of controls; None means all, ``"none"`` none."""
    if names is None:
        return tuple(CONTROLS)
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if asked == ["none"]:
        return ()
    unknown = [name for name in asked if name not in CONTROLS]
    if unknown:
        raise AttnscopeError(f"there is no control {shortly(unknown[0])}: choose from {', '.join(CONTROLS)}, or none")
    return tuple(name for name in CONTROLS if name in asked)


@validated
@contextmanager
def control(model: PreTrainedModel, name: str, seed: int) -> Generator[None]:
    """Within, a model has weights that know nothing; afterwards it has its own again, untouched."""
    own = {key: parameter.data for key, parameter in model.named_parameters()}
    if any(type(values) is not torch.Tensor for values in own.values()):
        raise AttnscopeError("weights rounded to whole numbers cannot be drawn anew")
    with own_random_numbers(), quiet():
        torch.manual_seed(seed)
        other = _redrawn(model) if name == "initialised" else {key: _in_disorder(own[key]) for key in own}
    try:
        for key, parameter in model.named_parameters():
            parameter.data = other[key].to(own[key])  # not in place: graphs that hold the old values stay valid
        yield
    finally:
        for key, parameter in model.named_parameters():
            parameter.data = own[key]


def _redrawn(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    fresh = type(model)(copy.deepcopy(model.config))
    return {key: parameter.data for key, parameter in fresh.named_parameters()}


def _in_disorder(values: torch.Tensor) -> torch.Tensor:
    if values.ndim < _MATRIX:
        return values
    order = torch.randperm(values.numel()).to(values.device)
    return values.flatten()[order].view_as(values)


def summed_up(own: xr.Dataset, controls: Mapping[str, xr.Dataset], documents: Sequence[str], seed: int) -> xr.Dataset:
    """Scores of all heads from those of windows; see `roles`."""
    names = [name for name in ROLES if name in own]
    cells = ("role", "layer", "head")
    columns: dict[str, list[np.ndarray]] = {}
    for name in names:
        scores = own[name].values
        kind = ROLES[name].probe
        units = list(units_of(documents)[0]) if kind == "text" else list(range(len(scores)))
        mean, (low, high) = scores.mean(0), interval(scores, units, seed=seed)
        columns.setdefault("score", []).append(mean)
        columns.setdefault("low", []).append(low)
        columns.setdefault("high", []).append(high)
        share = np.full_like(mean, np.nan)
        if ROLES[name].threshold is not None:
            share = reaching(name, scores, own[EQUAL + name].values).mean(0)
        columns.setdefault("windows_reached", []).append(np.where(np.isnan(mean), np.nan, share))
        columns.setdefault("equal", []).append(own[EQUAL + name].values.mean(0))
    words = {
        "score": "Score, mean over windows",
        "low": "Lower end of its 95% interval",
        "high": "Upper end of its 95% interval",
        "windows_reached": "Share of the windows in which the score reaches the threshold",
        "equal": "Score of equal weights over what each query may see",
    }
    variables: dict[str, Any] = {
        name: (cells[:2] if name == "equal" else cells, np.stack(values), {"long_name": words[name], "units": "share"})
        for name, values in columns.items()
    }
    if controls:
        of_controls = [np.stack([control[name].values.mean(0) for name in names]) for control in controls.values()]
        said = {"long_name": "Score with weights that know nothing", "units": "share"}
        variables["control_score"] = (("control", *cells), np.stack(of_controls), said)
    thresholds = [np.nan if ROLES[name].threshold is None else ROLES[name].threshold for name in names]
    variables["threshold"] = ("role", np.array(thresholds, float), {"long_name": "Published threshold"})
    texts = {
        part: ("role", np.array([getattr(ROLES[name], part) for name in names], dtype=object))
        for part in ("title", "definition", "source", "probe")
    }
    made = xr.Dataset(variables, {"role": names, **{name: own[name] for name in own.coords}, **texts})
    return made.assign_coords(control=list(controls)) if controls else made


@reads("roles")
def counts_of(roles: xr.Dataset) -> list[Row]:
    """How many heads have each role, next to uniform attention and the controls."""
    rows: list[Row] = []
    controls = _controls(roles)
    for name in map(str, roles.role.values):
        part = roles.sel(role=name)
        score, equal = part["score"].values, part["equal"].values
        others = {control: part["control_score"].sel(control=control).values for control in controls}
        layer, head = np.unravel_index(np.nanargmax(score), score.shape)
        highest = max((float(np.nanmax(values)) for values in others.values()), default=None)
        rows.append(
            {text: str(part[text].item()) for text in ("title", "definition", "source")}
            | {
                "role": name,
                "threshold": value_of(float(part["threshold"])),
                "reached": _count(name, score, equal),
                "heads": int(np.isfinite(score).sum()),
                **{control: _count(name, values, equal) for control, values in others.items()},
                "controls_best": highest,
                "above": None if highest is None else int((score > highest).sum()),
                "layer": int(roles.layer.values[layer]),
                "head": int(head),
                "best": float(score[layer, head]),
                "low": value_of(float(part["low"].values[layer, head])),
                "high": value_of(float(part["high"].values[layer, head])),
                "equal": float(np.nanmax(equal)),
            }
        )
    return rows


def reaching(name: str, scores: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """Which scores ``(..., layer, head)`` have the role, beside those of uniform attention ``(..., layer)``."""
    role = ROLES[name]
    least = np.inf if role.threshold is None else role.threshold
    return (scores >= least) & (scores >= role.more * equal[..., None])


def _count(name: str, scores: np.ndarray, equal: np.ndarray) -> int | None:
    return None if ROLES[name].threshold is None else int(reaching(name, scores, equal).sum())


def _controls(roles: xr.Dataset) -> list[str]:
    return [str(name) for name in roles.control.values] if "control" in roles.coords else []


def _sentence(rows: Sequence[Row], controls: Sequence[str]) -> str:
    """How many heads have each role, next to the controls."""
    known = [row for row in rows if row["reached"] is not None]
    if not known:
        return "No threshold is published for these roles."
    counts = [
        f"{row['title']} {row['reached']}" + (f" ({max(row[name] for name in controls)})" if controls else "")
        for row in known
    ]
    most = f" (in parentheses: the most with {' or '.join(controls)} weights)" if controls else ""
    return f"Heads at the published threshold{most}: {', '.join(counts)}."


@reads("roles")
def report(roles: xr.Dataset) -> Report:
    """Which roles heads have."""
    rows, controls = counts_of(roles), _controls(roles)
    notes, model = json.loads(roles.attrs["notes"]), str(roles.attrs["model"])
    least, most = notes["tokens"]
    tokens = f"{least} to {most}" if least < most else str(most)
    read = [f"{count(notes['text'], 'window')} of {tokens} tokens"] if "text" in notes else []
    read += [f"{notes['repeated']} texts of random tokens, each repeated"] if "repeated" in notes else []
    read += [f"{notes['needle']} of {notes['prompts']} needles retrieved"] if "needle" in notes else []
    missing = [
        f"no {ROLES[name].title if name in ROLES else name}: {reason}" for name, reason in skipped_of(roles).items()
    ]
    return Report(
        command="roles",
        title=f"Roles of the heads of {model}",
        model=model,
        read=", ".join(read),
        finding=Finding(
            [_sentence(rows, controls)],
            "scores at a published threshold; no test",
            [*dict.fromkeys((row["layer"], row["head"]) for row in rows if row["reached"])],
        ),
        tables=[
            Table("heads", "Scores", _scores(controls), _score_rows(roles, controls), terminal=0, page=0),
            Table("roles", "How many heads", _counts(controls), rows, terminal=len(rows)),
            Table("definitions", "Definitions", _DEFINITIONS, rows, terminal=0),
        ],
        result=roles,
        notes=[*notes_of(roles).values(), *missing],
        care={
            "A role reports where a head attends, not what it does.": "attnscope intervene measures whether a head "
            "matters.",
            "It is a score on these texts.": "A threshold is where its authors drew a line: a head just below is no "
            "other kind of head.",
        },
    )


_DEFINITIONS = (
    Quantity("title", "role", detail="page"),
    Quantity("definition", unit="text", detail="page"),
    Quantity("source", unit="text", detail="page"),
)


def _counts(controls: Sequence[str]) -> list[Quantity]:
    untrained = "heads of the same model with untrained or shuffled weights that reach it"
    return [
        Quantity("role", detail="data"),
        Quantity("title", "role"),
        Quantity("threshold", "from", "threshold", "published threshold of the score"),
        Quantity("reached", "heads", "count", "heads whose score reaches it"),
        Quantity("heads", "of", "count", detail="page"),
        *(Quantity(name, unit="count", meaning=untrained) for name in controls),
        Quantity("controls_best", "controls", "share", "highest score with such weights", detail="page"),
        Quantity(
            "above", unit="count", meaning="heads above all of those; of an untrained model about one, or half a head"
        ),
        Quantity("layer", unit="count", detail="data"),
        Quantity("head", unit="head", meaning="the head with the highest score, layer.head"),
        Quantity("best", "highest", "share", "its score", low="low", high="high"),
        Quantity("equal", "uniform", "share", "score of uniform attention"),
    ]


def _scores(controls: Sequence[str]) -> list[Quantity]:
    names = ("layer", "head", "role", "score", "low", "high", "windows_reached", "equal", *controls)
    return [Quantity(name, unit="share", detail="data") for name in names]


def _score_rows(roles: xr.Dataset, controls: Sequence[str]) -> list[Row]:
    """The score of each head in each role."""
    columns = {name: roles[name] for name in ("score", "low", "high", "windows_reached", "equal")}
    columns |= {name: roles.control_score.sel(control=name, drop=True) for name in controls}
    return rows_of(columns, roles.score)
