"""Loss of a model whose heads attend to the latest and the first tokens alone, as from a cache of that size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.stack import Edit, replacing_sets
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.statistics.effects import effect_variables
from attnscope.statistics.units import units_of
from attnscope.store.arrays import of_layers
from attnscope.support.progress import Progress, Tell, no_progress

_ROUNDING = 1e-9


def limiting(chosen: Tensor, recent: int, sinks: int) -> Edit:
    """An edit: the chosen heads, ``(variant, head)``, attend only to the latest and the first tokens."""

    def edit(call: AttentionCall, output: Tensor) -> Tensor:
        keys = torch.arange(call.key.shape[2], device=call.key.device)
        near = ((keys > call.query_positions[..., None] - recent) | (keys < sinks))[:, None]
        limited = output_of(replace(call, mask=near if call.mask is None else call.mask & near))
        return replacing_sets(chosen, limited.unflatten(0, (-1, output.shape[1])))(call, output)

    return edit


def changes_by_limits(
    session: PredictionSession, sets: np.ndarray, recent: int, sinks: int, *, progress: Tell = no_progress
) -> np.ndarray:
    """Change of the loss of each text when the heads of each set, ``(set, head)``, are limited: ``(text, set)``."""
    changes: list[np.ndarray] = []
    for part in session.slices():
        with session.passes(part) as batch:

            def edits(some: range) -> dict[int, Edit]:
                chosen = torch.from_numpy(sets[some.start : some.stop]).split(session.heads, -1)
                return {call: limiting(heads, recent, sinks) for call, heads in enumerate(chosen) if bool(heads.any())}

            change = batch.passes.sweep(range(len(sets)), batch.most, edits, batch.loss_change)
            changes.append(change.T.double().cpu().numpy())
        progress(Progress("limiting keys", part.stop / len(session.windows), {"windows": part.stop}))
    return np.concatenate(changes)


def key_heads(session: PredictionSession, shared: np.ndarray) -> np.ndarray:
    """Number of the key-value head of each head, layer by layer; `shared` is the number of heads that share one."""
    groups = np.array([(layer, head // shared[layer]) for layer, head in session.cells])
    return np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1)


def alone(
    session: PredictionSession,
    shared: np.ndarray,
    caches: Sequence[tuple[int, int]],
    progress: Tell | None,
    heads: Sequence[tuple[int, int]] | None = None,
) -> np.ndarray:
    """The same for each key-value head alone, as a change of its query heads: ``(text, cache, layer, head)``.

    With `heads`, only for those that some of them read; NaN for other heads.
    """
    session.check()
    member = key_heads(session, shared)
    chosen = np.array([heads is None or cell in heads for cell in session.cells])
    limited = np.unique(member[chosen])
    tell = progress or no_progress
    changes = np.full((len(session.windows), len(caches), len(member)), np.nan)
    for at, cache in enumerate(caches):
        each = changes_by_limits(session, limited[:, None] == member, *cache, progress=tell)
        changes[:, at, chosen] = each[:, np.searchsorted(limited, member[chosen])]
    return of_layers(changes, session.heads)


_STEPS = 4  # points of a curve after the first
#: Costs of heads by the name of an order: one array ``(head,)``, or one for each half of the texts.
Costs: TypeAlias = Mapping[str, Sequence[np.ndarray]]


def loss_by_size(
    session: PredictionSession,
    shared: np.ndarray,
    causal: np.ndarray,
    caches: Sequence[tuple[int, int]],
    costs_of: Callable[[tuple[int, int]], Costs],
    *,
    half: np.ndarray | None = None,
    draws: int = 19,
    seed: int = 0,
    tell: Tell = no_progress,
) -> xr.Dataset:
    """Change of the loss as more key-value heads are limited to a cache, the cheapest first, next to random orders.

    `shared` is the number of query heads that share a key-value head and `causal` whether it attends so, ``(layer,)``.
    A key-value head costs as much as the costliest of its query heads. Where an order has costs from both halves of the
    texts, a text of one half gets the order of the other half. The result is over ``cache, order, point``; the last
    order is ``random``, the mean of `draws` random orders. ``difference`` is the change less that mean. ``p`` is the
    share of all orders whose area under the curve is as small as that of the first one, corrected for all caches by
    the smallest area among them, in standard deviations over orders (Westfall and Young 1993).
    """
    member = key_heads(session, shared)
    cells = tuple(np.array(session.cells).T)
    heads = np.unique(member[causal[cells[0]]])  # those of cross-attention are never limited
    limited = np.unique(np.linspace(0, len(heads), _STEPS + 1).round().astype(int))[1:]
    generator = np.random.default_rng(seed)
    shuffles = [generator.permutation(heads) for _ in range(draws)]
    lengths = np.array([len(window) for window in session.windows])
    by_cache: list[np.ndarray] = []
    areas: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    names: list[str] = []
    for number, cache in enumerate(caches):
        costs = {name: [cost[cells] for cost in halves] for name, halves in costs_of(cache).items()}
        names = [*costs, "random"]
        orders = [
            heads[np.argsort([cost[member == head].max() for head in heads], kind="stable")]
            for halves in costs.values()
            for cost in halves
        ]
        sets = np.stack([np.isin(member, order[:count]) for order in (*orders, *shuffles) for count in limited])

        def progress(at: Progress, number: int = number) -> None:
            tell(replace(at, share=(number + at.share) / len(caches)))

        changes = changes_by_limits(session, sets, *cache, progress=progress)
        changes = changes.reshape(len(changes), -1, len(limited))
        chosen: list[np.ndarray] = []
        for halves in costs.values():
            first = sum(len(costs[name]) for name in [*costs][: len(chosen)])
            side = np.zeros(len(changes), int) if len(halves) == 1 or half is None else 1 - half
            chosen.append(changes[np.arange(len(changes)), first + side])
        random = changes[:, len(orders) :]
        by_cache.append(np.stack([*chosen, random.mean(1)], 1))
        areas.append(np.concatenate([chosen[0][:, None], random], 1)[..., :-1].mean((0, 2)))  # all heads: any order
        share = np.minimum(1.0, sum(cache) / lengths).mean()
        sizes.append(1 - limited / len(heads) * (1 - share))
    change, units = np.stack(by_cache, 1), units_of(session.documents)[0]
    dims, words = ("cache", "order", "point"), "Change of the loss with limited keys"
    spread = np.std(areas, 1, keepdims=True)
    lower = (areas - np.mean(areas, 1, keepdims=True)) / np.where(spread > 0, spread, np.inf)
    return xr.Dataset(
        {
            "loss_change": (("window", *dims), change, {"long_name": words, "units": "nats"}),
            **effect_variables(change, units, dims, words, corrected="all caches, orders and points", seed=seed),
            **effect_variables(
                change[:, :, 0] - change[:, :, -1], units, ("cache", "point"), f"{words}, beyond that of random heads",
                name="difference", prefix="difference_", corrected="all caches and points", seed=seed,
            ),
            "p": ("cache", (lower.min(0) <= lower[:, :1] + _ROUNDING).mean(1)),
            "size": (("cache", "point"), np.stack(sizes), {"long_name": "Share of the keys kept", "units": "share"}),
            "limited": ("point", limited, {"long_name": "Key-value heads that are limited", "units": "heads"}),
        },
        {
            "source": ("window", np.array(session.documents, dtype=object)),
            "cache": [f"{recent}+{sinks}" for recent, sinks in caches],
            "order": names,
        },
        {"heads": len(heads), "random_orders": draws},
    )  # fmt: skip
