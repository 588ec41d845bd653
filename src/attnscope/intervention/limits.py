"""Loss of a model whose heads attend to the latest and the first tokens alone, as from a cache of that size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.stack import Edit, replacing_sets
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.store.arrays import of_layers
from attnscope.support.progress import Progress, Tell, no_progress


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


def alone(
    session: PredictionSession, shared: np.ndarray, caches: Sequence[tuple[int, int]], progress: Tell | None
) -> np.ndarray:
    """The same for each key-value head alone, as a change of its query heads: ``(text, cache, layer, head)``."""
    session.check()
    groups = np.array([(layer, head // shared[layer]) for layer, head in session.cells])
    member = np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1)
    sets = np.arange(member.max() + 1)[:, None] == member
    tell = progress or no_progress
    changes = [changes_by_limits(session, sets, *cache, progress=tell)[:, member] for cache in caches]
    return of_layers(np.stack(changes, 1), session.heads)
