"""Sets of heads taken out together: the search for the heads that matter, and curves of removing more and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.intervention.arrays.search import random_sets, sparse_effects
from attnscope.intervention.measured_effects import most_variants
from attnscope.intervention.passes.replacements import HeadMeans, replacing_sets
from attnscope.intervention.passes.stack import stacked_passes
from attnscope.measure.documents import units_of
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.intervention.passes.replacements import Ablation
    from attnscope.intervention.session import PredictionSession

SEARCH_SHARE = 0.25  # passes of a search, by default, as a share of layers times heads
_REMOVED = 0.1  # share of the heads that one set of a search takes out


@validated
def changes_by_sets(
    session: PredictionSession,
    sets: Sequence[np.ndarray],
    ablation: Ablation,
    *,
    places: Sequence[slice] | None = None,
    variants: int | None = None,
    means: HeadMeans | None = None,
    progress: Tell | None = None,
) -> np.ndarray:
    """Change of the loss of each text when sets of heads are replaced at once, ``(text, set)``, nats."""
    tell = progress or no_progress
    places = session.slices() if places is None else places
    means = session.means if ablation == "mean" and means is None else means
    bounds = np.cumsum([0, *session.heads])
    changes: list[np.ndarray] = []
    for place, of_batch in zip(places, sets, strict=True):
        asked = session.batch(place)
        with stacked_passes(session.model, skips=session.skips) as passes, torch.no_grad():
            before = passes.plain(asked.reading.inputs(session.model), asked.places, session.name(place.start))
            loss = asked.scores(before[None])["loss"]
            others = session.stand_ins(asked, passes.outputs, passes.sites, ablation, means)
            most = variants or most_variants(asked, before, passes.outputs)
            parts: list[Tensor] = []
            for first in range(0, len(of_batch), most):
                some = torch.from_numpy(of_batch[first : first + most])
                edits = {
                    call: replacing_sets(chosen, other)
                    for call, other in enumerate(others)
                    if bool((chosen := some[..., bounds[call] : bounds[call + 1]]).any())
                }
                if not edits:
                    parts.append(torch.zeros(len(some), len(asked), dtype=torch.float32))
                    continue
                parts.append(asked.scores(passes.run(edits, len(some)))["loss"] - loss)
        changes.append(torch.cat(parts).T.double().cpu().numpy())
        tell(Progress("heads taken out together", place.stop / places[-1].stop, {"windows": place.stop}))
    return np.concatenate(changes)


@validated
def search_heads(
    session: PredictionSession,
    *,
    passes: int | None = None,
    ablation: Ablation = "mean",
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Estimate every head's effect from random sets of heads taken out together."""
    count = len(session.cells)
    passes = max(1, round(SEARCH_SHARE * count)) if passes is None else passes
    removed = max(1, round(_REMOVED * count))  # in a small model one: two would be many of its heads
    generator = np.random.default_rng(seed)
    places = session.slices()
    sets = [random_sets((passes, place.stop - place.start), count, removed, generator) for place in places]
    changes = changes_by_sets(session, sets, ablation, progress=progress)
    rows = np.concatenate([layer.transpose(1, 0, 2).reshape(-1, count) for layer in sets])
    documents = np.repeat(np.array(session.documents, dtype=object), passes)
    effects = sparse_effects(rows, changes.reshape(-1), documents.tolist())
    return xr.Dataset(
        {
            "searched": (
                ("layer", "head"),
                of_layers(effects, session.heads),
                {"long_name": "Change of the loss without the head, by sparse regression", "units": "nats"},
            )
        },
        attrs={"passes": passes, "measurements": len(rows), "removed": removed, "ablation": ablation},
    )


@validated
def removal_curves(
    session: PredictionSession,
    orders: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    ablation: Ablation = "mean",
    random_orders: int = 5,
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Loss when the first 1, 2, 4, ... heads of an order are taken out together."""
    halves = half_of(session.documents)
    if not halves.any():
        raise AttnscopeError(
            "found one text; expected 2 or more, as heads are put in order on some and taken out on others: give more "
            "text"
        )
    count = len(session.cells)
    removed = steps_to(count)
    generator = np.random.default_rng(seed)
    shuffles = [generator.permutation(count) for _ in range(random_orders)]
    places = session.slices()
    sets = [_sets_of(orders, shuffles, session.heads, removed, 1 - halves[place]) for place in places]
    changes = changes_by_sets(session, sets, ablation, progress=progress)
    changes = changes.reshape(len(changes), len(orders) + random_orders, len(removed))
    by_order = np.concatenate([changes[:, : len(orders)], changes[:, len(orders) :].mean(1, keepdims=True)], 1)
    return xr.Dataset(
        {
            "loss_change": (
                ("window", "order", "removed"),
                by_order,
                {"long_name": "Change of the loss without the first heads of the order", "units": "nats"},
            )
        },
        coords={
            "order": [*orders, "random"],
            "removed": ("removed", removed, {"long_name": "Heads taken out together", "units": "heads"}),
            "source": ("window", np.array(session.documents, dtype=object)),
        },
        attrs={"ablation": ablation, "random_orders": random_orders},
    )


def half_of(documents: Sequence[str]) -> np.ndarray:
    """Which half each text belongs to, 0 or 1: documents take turns; windows where there are fewer than 6 documents."""
    units, _ = units_of(documents)
    number = {name: place for place, name in enumerate(dict.fromkeys(units))}
    return np.array([number[name] % 2 for name in units])


def steps_to(count: int) -> np.ndarray:
    """1, 2, 4, ... and all."""
    return np.array([*(2**power for power in range((count - 1).bit_length())), count])


def of_layers(flat: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Values of all heads, layer by layer, as ``(layer, head)``; NaN beyond a layer's heads."""
    whole = np.full((len(heads), max(heads)), np.nan)
    for layer, part in enumerate(np.split(flat, np.cumsum(heads)[:-1])):
        whole[layer, : len(part)] = part
    return whole


def _sets_of(
    orders: Mapping[str, tuple[np.ndarray, np.ndarray]],
    shuffles: Sequence[np.ndarray],
    heads: Sequence[int],
    removed: np.ndarray,
    made_on: np.ndarray,
) -> np.ndarray:
    """``(set, text, head)``: for each text, the first heads of the orders that were made on the other half."""
    inside = np.concatenate([np.arange(count) + layer * max(heads) for layer, count in enumerate(heads)])
    ranks: list[np.ndarray] = []  # (text, head): place of each head in an order
    for scores in orders.values():
        both = np.stack([_ranks(half.reshape(-1)[inside]) for half in scores])
        ranks.append(both[made_on])
    ranks += [np.broadcast_to(shuffle, (len(made_on), len(shuffle))) for shuffle in shuffles]
    return np.stack([rank < count for rank in ranks for count in removed])


def _ranks(scores: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(scores), dtype=np.int64)
    ranks[np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")] = np.arange(len(scores))
    return ranks
