"""A test of one head of one text, over all heads that are chosen and all texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import xarray as xr

from attnscope.capture.borrow import borrowed
from attnscope.capture.notes import layer_coordinates
from attnscope.intervention.effects import with_intervals
from attnscope.intervention.given import InputOptions, InterventionInput, input_of, inputs_of
from attnscope.intervention.passes.questions import MASKED
from attnscope.intervention.session import check_predictions
from attnscope.intervention.weights.read_text import ReadText
from attnscope.support.arguments import Seed, validated
from attnscope.support.checks import check_real
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

    OfHead = Callable[[ReadText, int, int, np.random.Generator], Mapping[str, Any]]

Head = tuple[int, int]


class HeadOptions(TypedDict, total=False):
    """Of every test: which heads it takes, and how."""

    heads: Sequence[Head] | None  # ``(layer, head)`` each; None for all
    masked: float  # see `ReadText`
    seed: int  # of the random numbers; each head of each text has numbers of its own
    progress: Tell | None  # called with a `Progress` after each head


class TestOptions(InputOptions, HeadOptions, total=False):
    """What every test takes beside model and texts."""


def prepared(
    model: Model | Study | InterventionInput | None, texts: Sources, options: TestOptions
) -> tuple[InterventionInput, HeadOptions]:
    """Model and texts, and the options of the test itself."""
    reading = {name: value for name, value in options.items() if name in InputOptions.__annotations__}
    rest = {name: value for name, value in options.items() if name not in reading}
    return input_of(model, texts, **cast("InputOptions", reading)), head_options(**cast("HeadOptions", rest))


@validated
def head_options(
    *, heads: Sequence[Head] | None = None, masked: float = MASKED, seed: Seed = 0, progress: Tell | None = None
) -> HeadOptions:
    """The options that a test was called with, checked, and the others."""
    check_real(0.0, 1.0, masked=masked)
    return HeadOptions(heads=heads, masked=masked, seed=seed, progress=progress)


def over_heads(
    given: InterventionInput,
    test: str,
    variables: Mapping[str, tuple[str, ...]],
    of_text: Callable[[ReadText, int], OfHead | None],
    coordinates: Mapping[str, Sequence[Any]] | None = None,
    *,
    predicts: bool = True,
    heads: Sequence[Head] | None = None,
    masked: float = MASKED,
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Run a test on every head that is chosen in every text.

    `variables` say by name what each is, its unit, and its dimensions after ``window, layer, head``; `predicts` is
    whether predictions are compared.
    """
    coordinates, tell = coordinates or {}, progress or no_progress
    values: dict[str, np.ndarray] = {}
    sites: list[Any] = []
    chosen: list[Head] = []
    with borrowed(given.model):
        if predicts:
            check_predictions(given.model, inputs_of(given.model, given.windows[0]), test)
        for number, window in enumerate(given.windows):
            text = ReadText(given.model, window, number, given.mask_id if predicts else None, masked=masked)
            if not values:
                sites = text.sites
                counts = [call.query.shape[1] for call in text.calls]
                chosen = _chosen(heads, counts)
                size = len(given.windows), len(counts), max(counts)
                values = {
                    name: np.full((*size, *(len(coordinates[dim]) for dim in more)), np.nan)
                    for name, (_, _, *more) in variables.items()
                }
            of_head = of_text(text, number)
            for done, (layer, head) in enumerate(chosen):
                if of_head is not None:
                    generator = np.random.default_rng((seed, number, layer, head))
                    for name, value in of_head(window, layer, head, generator).items():
                        values[name][number, layer, head] = value
                share = (number + (done + 1) / len(chosen)) / len(given.windows)
                tell(Progress(test.replace("_", " "), share))
    result = xr.Dataset(
        {
            name: (("window", "layer", "head", *more), values[name], {"long_name": long_name, "units": units})
            for name, (long_name, units, *more) in variables.items()
        },
        {
            "window": np.arange(len(given.windows)),
            "source": ("window", np.array(given.documents, dtype=object)),
            **layer_coordinates(sites),
            "head": np.arange(next(iter(values.values())).shape[2]),
            **coordinates,
        },
    ).assign_attrs(model=given.name, test=test, seed=seed)
    return with_intervals(result, list(variables), given.documents, seed=seed)


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
