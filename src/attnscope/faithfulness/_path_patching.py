"""Path patching: what of a head's effect reaches the answer through one later head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from torch import Tensor

from attnscope._arguments import typed
from attnscope.capture import Tokenizer, borrowing, load_model
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._runs import (
    Direction,
    Runs,
    both_runs,
    differences,
    encoded_pairs,
    head_coordinates,
    with_recovered,
)
from attnscope.faithfulness._sets import of_layers
from attnscope.faithfulness.passes import replacing

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.capture import LoadedModel, Model
    from attnscope.faithfulness.passes import EncodedPairs, Pair


@typed
@borrowing
def path_patch(
    model: Model,
    pairs: Iterable[Pair],
    receiver: tuple[int, int],
    *,
    tokenizer: Tokenizer = None,
    direction: Direction = "noising",
) -> xr.Dataset:
    """How much of each head's effect reaches the answer through one later head (path patching; Wang et al. 2022).

    The sender's output of the other run is put in; every other head is held at what it gave, so that what changes
    reaches the receiver through the residual stream and the feed-forward layers alone; what the receiver then gives is
    put into a run that is else as it was.

    Parameters
    ----------
    model, pairs, tokenizer, direction
        See `activation_patch`.
    receiver
        ``(layer, head)``; senders are all heads of the layers below.

    Returns
    -------
    xarray.Dataset
        ``difference`` ``(pair, layer, head)`` (NaN from the receiver's layer on), ``clean``, ``corrupted`` and
        ``recovered``, as in `activation_patch`.

    Raises
    ------
    AttnscopeError
        What `activation_patch` raises, or if there is no such receiver with layers below it.

    Examples
    --------
    >>> from attnscope.faithfulness import Pair
    >>> pairs = [Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")]
    >>> bool(path_patch("bundled", pairs, receiver=(1, 0)).difference.sel(layer=1).isnull().all())
    True
    """
    loaded = load_model(model, tokenizer=tokenizer)
    through = patched_through(loaded, encoded_pairs(loaded, pairs), receiver, direction=direction)
    return with_recovered(through).assign_attrs(model=loaded.name)


def patched_through(
    loaded: LoadedModel,
    encoded: EncodedPairs,
    receiver: tuple[int, int],
    *,
    direction: Direction,
    variants: int | None = None,
    skips: bool = True,
) -> xr.Dataset:
    """The differences of each pair; see `path_patch`."""
    layer, head = receiver
    with both_runs(loaded, encoded, direction, skips=skips) as runs:
        own = runs.passes.outputs
        if not (0 < layer < len(own) and 0 <= head < own[layer].shape[1]):
            raise AttnscopeError(
                f"the receiver (--receiver) is {layer}.{head}; expected layer.head, a head of layers 1 to "
                f"{len(own) - 1}, which have layers below them"
            )
        heads = [output.shape[1] for output in own]
        flat = np.full((len(encoded), sum(heads)), np.nan)
        most = runs.variants(variants)
        place = 0
        for sender in range(layer):
            for first in range(0, heads[sender], most):
                senders = range(first, min(first + most, heads[sender]))
                received = _received(runs, sender, senders, layer)

                def put_in(_: AttentionCall, output: Tensor, received: Tensor = received) -> Tensor:
                    output = output.clone()
                    output[:, :, head] = received[:, :, head]
                    return output

                logits = runs.passes.run({layer: put_in}, len(senders))
                flat[:, place : place + len(senders)] = encoded.difference(logits).T.double().cpu().numpy()
                place += len(senders)
        values = np.stack([of_layers(row, heads) for row in flat])
        whole = differences(runs, ("layer", "head"), values, direction, head_coordinates(runs))
    return whole.assign_attrs(receiver=f"{layer}.{head}")


def _received(runs: Runs, sender: int, senders: range, receiver: int) -> Tensor:
    """What the receiver's layer gives when one head of the sender's layer is another run's, all others held."""
    kept: list[Tensor] = []
    donor, own = runs.donors[sender], runs.passes.outputs

    def hold(call: int) -> Callable[[AttentionCall, Tensor], Tensor]:
        return lambda _, output: own[call].expand_as(output)

    def receive(_: AttentionCall, output: Tensor) -> Tensor:
        kept.append(output.clone())
        return output

    between = {call: hold(call) for call in range(sender + 1, receiver)}
    runs.passes.run(
        {sender: replacing(senders, [donor] * len(senders)), **between, receiver: receive}, len(senders)
    )
    return kept[0]
