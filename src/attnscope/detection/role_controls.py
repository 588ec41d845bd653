"""The same model with weights that know nothing: what any head of such a shape gives."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.capture.borrow import quiet
from attnscope.detection.role import ROLES
from attnscope.measure.documents import interval, units_of
from attnscope.measure.quantities import EQUAL
from attnscope.store.runs import skipped_of
from attnscope.support.arguments import reads, validated
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError
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
        raise AttnscopeError(
            f"there is no control {shortly(unknown[0])}: choose from {', '.join(CONTROLS)}, or none"
        )
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
            parameter.data = other[key].to(
                own[key]
            )  # not in place: graphs that hold the old values stay valid
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


@dataclass(frozen=True)
class RoleCount:
    """How many heads have a role, and how many would with weights that know nothing."""

    name: str  # words and threshold of the role
    title: str  # words and threshold of the role
    definition: str  # words and threshold of the role
    source: str  # words and threshold of the role
    threshold: float | None  # words and threshold of the role
    heads: int  # heads that it is asked of
    reached: int | None  # heads whose mean score reaches the threshold; None without one
    # the highest score, whose it is, and its 95% interval (NaN where fewer than 6 windows or texts tell it)
    best: float
    layer: int  # the highest score, whose it is, and its 95% interval (NaN where fewer than 6 windows or texts tell it)
    head: int  # the highest score, whose it is, and its 95% interval (NaN where fewer than 6 windows or texts tell it)
    low: float  # the highest score, whose it is, and its 95% interval (NaN where fewer than 6 windows or texts tell it)
    # the highest score, whose it is, and its 95% interval (NaN where fewer than 6 windows or texts tell it)
    high: float
    equal: float  # what equal weights give, at most
    # results of each control: its heads that reach the threshold (None without one), and its highest score
    controls: Mapping[str, tuple[int | None, float]]
    above: (
        int | None
    )  # heads whose score is higher than that of every head of every control; None without controls


def summed_up(
    own: xr.Dataset, controls: Mapping[str, xr.Dataset], documents: Sequence[str], seed: int
) -> xr.Dataset:
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
        name: (
            cells[:2] if name == "equal" else cells,
            np.stack(values),
            {"long_name": words[name], "units": "share"},
        )
        for name, values in columns.items()
    }
    if controls:
        of_controls = [
            np.stack([control[name].values.mean(0) for name in names]) for control in controls.values()
        ]
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
@validated
def counts_of(roles: xr.Dataset) -> list[RoleCount]:
    """How many heads have each role, beside its nulls."""
    rows: list[RoleCount] = []
    for name in map(str, roles.role.values):
        part = roles.sel(role=name)
        score = part["score"].values
        threshold = None if np.isnan(part["threshold"]) else float(part["threshold"])
        controls = {
            str(control): part["control_score"].sel(control=control).values
            for control in (roles.control.values if "control" in roles.coords else ())
        }
        layer, head = np.unravel_index(np.nanargmax(score), score.shape)
        highest = max((float(np.nanmax(values)) for values in controls.values()), default=np.nan)
        rows.append(
            RoleCount(
                name=name,
                title=str(part.title.item()),
                definition=str(part.definition.item()),
                source=str(part.source.item()),
                threshold=threshold,
                heads=int(np.isfinite(score).sum()),
                reached=_count(name, score, part["equal"].values),
                best=float(score[layer, head]),
                layer=int(roles.layer.values[layer]),
                head=int(head),
                low=float(part["low"].values[layer, head]),
                high=float(part["high"].values[layer, head]),
                equal=float(np.nanmax(part["equal"].values)),
                controls={
                    control: (_count(name, values, part["equal"].values), float(np.nanmax(values)))
                    for control, values in controls.items()
                },
                above=int((score > highest).sum()) if controls else None,
            )
        )
    return rows


def reaching(name: str, scores: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """Which scores ``(..., layer, head)`` have the role, beside those of uniform attention ``(..., layer)``."""
    role = ROLES[name]
    least = np.inf if role.threshold is None else role.threshold
    return (scores >= least) & (scores >= role.more * equal[..., None])


def _count(name: str, scores: np.ndarray, equal: np.ndarray) -> int | None:
    return None if ROLES[name].threshold is None else int(reaching(name, scores, equal).sum())


@reads("roles")
@validated
def headline(roles: xr.Dataset) -> list[str]:
    """How many heads have each role, in sentences, beside as many with weights that know nothing."""
    said: list[str] = []
    for row in counts_of(roles):
        names = " or ".join(row.controls)
        if row.reached is None:
            beside = f"; {row.above} above every head with {names} weights" if row.controls else ""
            said.append(
                f"{row.title}: no published threshold; the highest of {row.heads} heads is {row.layer}.{row.head} with "
                f"{row.best:.2f}, equal weights give {row.equal:.2f}{beside}."
            )
            continue
        counts = ", ".join(f"{count} with {name} weights" for name, (count, _) in row.controls.items())
        said.append(
            f"{row.title}: {row.reached} of {row.heads} heads at {row.threshold:g} or more{_than_uniform(row)}"
            f"{f'; {counts}' if counts else ''}."
        )
    return [*said, *(f"no {name}: {reason}." for name, reason in skipped_of(roles).items())]


def _than_uniform(row: RoleCount) -> str:
    more = ROLES[row.name].more
    return f" and {more:g} times uniform attention's share (which is {row.equal:.2f} at most)" if more else ""
