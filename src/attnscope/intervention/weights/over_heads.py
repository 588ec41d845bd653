"""A test of one head of one text, over all heads that are chosen and all texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture.borrow import borrowed
from attnscope.capture.notes import layer_coordinates
from attnscope.intervention.effects import with_intervals
from attnscope.intervention.given import inputs_of
from attnscope.intervention.passes.questions import MASKED
from attnscope.intervention.session import check_predictions
from attnscope.intervention.weights.read_text import ReadText
from attnscope.support.checks import check_real, check_seed
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.intervention.given import InterventionInput

    OfHead = Callable[[ReadText, int, int, np.random.Generator], Mapping[str, Any]]

Head = tuple[int, int]


@dataclass(frozen=True, eq=False)
class TestPlan:
    """What a test gives of each head, and what it asks of texts and heads."""

    name: str  # name of the test
    # by name: what it is, its unit, and its dimensions after ``text, layer, head``
    variables: Mapping[str, tuple[str, ...]]
    # coordinates of those dimensions
    coordinates: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    heads: Sequence[Head] | None = None  # ``(layer, head)`` each; None for all
    seed: int = 0  # seed of the random numbers; each head of each text has numbers of its own
    masked: float = MASKED  # see `ReadText`
    predicts: bool = True  # whether predictions are compared
    progress: Tell | None = None  # called with a `Progress` after each head


def over_heads(
    given: InterventionInput, plan: TestPlan, of_text: Callable[[ReadText, int], OfHead | None]
) -> xr.Dataset:
    """Run a test on every head that is chosen in every text."""
    check_seed(plan.seed)
    check_real(0.0, 1.0, masked=plan.masked)
    tell = plan.progress or no_progress
    values: dict[str, np.ndarray] = {}
    sites: list[Any] = []
    chosen: list[Head] = []
    with borrowed(given.model):
        if plan.predicts:
            check_predictions(given.model, inputs_of(given.model, given.windows[0]), plan.name)
        for number, window in enumerate(given.windows):
            mask_id = given.mask_id if plan.predicts else None
            text = ReadText(given.model, window, number, mask_id, masked=plan.masked)
            if not values:
                sites = text.sites
                counts = [call.query.shape[1] for call in text.calls]
                chosen = _chosen(plan.heads, counts)
                values = _empty(plan, len(given.windows), len(counts), max(counts))
            test = of_text(text, number)
            for done, (layer, head) in enumerate(chosen):
                if test is not None:
                    generator = np.random.default_rng((plan.seed, number, layer, head))
                    for name, value in test(text, layer, head, generator).items():
                        values[name][number, layer, head] = value
                share = (number + (done + 1) / len(chosen)) / len(given.windows)
                tell(Progress(plan.name.replace("_", " "), share))
    return _labelled(given, plan, values, sites)


def _chosen(heads: Sequence[Head] | None, counts: Sequence[int]) -> list[Head]:
    every = [(layer, head) for layer, count in enumerate(counts) for head in range(count)]
    if heads is None:
        return every
    known = set(every)
    for asked in heads:
        if tuple(asked) not in known:
            raise AttnscopeError(
                f"there is no head {'.'.join(map(str, asked))}: layers go from 0 to {len(counts) - 1}, heads from 0 to "
                f"{max(counts) - 1}"
            )
    if not heads:
        raise AttnscopeError("no head was named: give (layer, head) pairs, or leave heads out for all")
    return [(int(layer), int(head)) for layer, head in heads]


def _empty(plan: TestPlan, texts: int, layers: int, heads: int) -> dict[str, np.ndarray]:
    return {
        name: np.full((texts, layers, heads, *(len(plan.coordinates[dim]) for dim in more)), np.nan)
        for name, (_, _, *more) in plan.variables.items()
    }


def _labelled(
    given: InterventionInput, plan: TestPlan, values: dict[str, np.ndarray], sites: Sequence[Any]
) -> xr.Dataset:
    result = xr.Dataset(
        {
            name: (
                ("text", "layer", "head", *more),
                values[name],
                {"long_name": long_name, "units": units},
            )
            for name, (long_name, units, *more) in plan.variables.items()
        },
        {
            "text": np.arange(len(given.windows)),
            "source": ("text", np.array(given.documents, dtype=object)),
            **layer_coordinates(sites),
            "head": np.arange(next(iter(values.values())).shape[2]),
            **plan.coordinates,
        },
    ).assign_attrs(model=given.name, test=plan.name, seed=plan.seed)
    return with_intervals(result, list(plan.variables), given.documents, seed=plan.seed)
