"""Activation patching: what of one run, put into the other, moves the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import borrowed, preserve_model_state
from attnscope.capture.load import load_model
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.processors import Tokenizer
from attnscope.intervention.passes.gradients import HeadGradients, answers_difference
from attnscope.intervention.passes.replacements import replacing
from attnscope.intervention.passes.stack import stacked_passes
from attnscope.intervention.session import (
    Direction,
    Runs,
    both_runs,
    differences,
    encoded_pairs,
    head_coordinates,
    with_recovered,
)
from attnscope.intervention.sets import of_layers
from attnscope.store.arrays import padded_heads
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.loaded import LoadedModel
    from attnscope.intervention.passes.pairs import EncodedPairs, Pair
    from attnscope.kernels.call import AttentionCall

What = Literal["heads", "residual"]
WHATS: tuple[What, ...] = ("heads", "residual")


@validated
@preserve_model_state
def activation_patch(
    model: Model,
    pairs: Iterable[Pair],
    *,
    tokenizer: Tokenizer = None,
    what: What = "heads",
    by_position: bool = False,
    direction: Direction = "denoising",
    variants: int | None = None,
) -> xr.Dataset:
    r"""Put activations of one run into the other, one at a time, and see which run's answer the model gives."""
    loaded = load_model(model, tokenizer=tokenizer)
    encoded = encoded_pairs(loaded, pairs)
    pairs_patched = patched(loaded, encoded, what=what, by_position=by_position, direction=direction, variants=variants)
    if "position" in pairs_patched.dims:
        pairs_patched = pairs_patched.assign_coords(token=("position", np.array(encoded.labels(), dtype=object)))
    return with_recovered(pairs_patched).assign_attrs(model=loaded.name)


def patched(
    loaded: LoadedModel,
    encoded: EncodedPairs,
    *,
    what: What,
    by_position: bool,
    direction: Direction,
    variants: int | None = None,
    skips: bool = True,
) -> xr.Dataset:
    """The differences of each pair; see `activation_patch`."""
    with both_runs(loaded, encoded, direction, skips=skips) as runs:
        most = runs.variants(variants)
        if what == "residual":
            values = _states(runs, most)
            coords = {"block": np.arange(values.shape[1])}
            return differences(runs, ("block", "position"), values, direction, coords)
        values = _heads(runs, most, by_position=by_position)
        dims = ("layer", "head", *(["position"] if by_position else []))
        return differences(runs, dims, values, direction, head_coordinates(runs))


def _heads(runs: Runs, most: int, *, by_position: bool) -> np.ndarray:
    """``(pair, layer, head[, position])``."""
    count, length = runs.encoded.clean.shape
    layers: list[np.ndarray] = []
    for call, donor in enumerate(runs.donors):
        heads = donor.shape[1]
        cells = [(head, place) for head in range(heads) for place in (range(length) if by_position else [None])]
        parts: list[Tensor] = []
        for first in range(0, len(cells), most):
            some = cells[first : first + most]

            def edit(_: AttentionCall, output: Tensor, some: object = some, donor: Tensor = donor) -> Tensor:
                output = output.clone()
                for variant, (head, place) in enumerate(some):  # pyright: ignore[reportArgumentType]
                    at = slice(None) if place is None else slice(place, place + 1)
                    output[variant, :, head, at] = donor[:, head, at]
                return output

            parts.append(runs.encoded.difference(runs.passes.run({call: edit}, len(some))))
        shape = (count, heads, *([length] if by_position else []))
        layers.append(torch.cat(parts).T.reshape(shape).double().cpu().numpy())
    return np.moveaxis(padded_heads(layers, axis=1), 0, 1)


def _states(runs: Runs, most: int) -> np.ndarray:
    """``(pair, block, position)``."""
    if not runs.donor_states:
        raise AttnscopeError(
            f"{type(runs.passes.model).__name__} has no list of blocks, so its residual stream is not found: patch its "
            "heads"
        )
    length = runs.encoded.clean.shape[1]
    blocks: list[np.ndarray] = []
    for block, donor in enumerate(runs.donor_states):
        parts: list[Tensor] = []
        for first in range(0, length, most):
            places = range(first, min(first + most, length))

            def edit(states: Tensor, places: range = places, donor: Tensor = donor) -> Tensor:
                states = states.clone()
                for variant, place in enumerate(places):
                    states[variant, :, place] = donor[:, place]
                return states

            parts.append(runs.encoded.difference(runs.passes.run({}, len(places), {block: edit})))
        blocks.append(torch.cat(parts).T.double().cpu().numpy())
    return np.stack(blocks, 1)


@validated
@preserve_model_state
def path_patch(
    model: Model,
    pairs: Iterable[Pair],
    receiver: tuple[int, int],
    *,
    tokenizer: Tokenizer = None,
    direction: Direction = "noising",
) -> xr.Dataset:
    """How much of each head's effect reaches the answer through one later head (path patching; Wang et al. 2022)."""
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
    runs.passes.run({sender: replacing(senders, [donor] * len(senders)), **between, receiver: receive}, len(senders))
    return kept[0]


@validated
@preserve_model_state
def attribution_patch(
    model: Model,
    pairs: Iterable[Pair],
    *,
    tokenizer: Tokenizer = None,
    by_position: bool = False,
    direction: Direction = "noising",
    steps: int = 1,
) -> xr.Dataset:
    """Estimate patching every head by one backward pass, or by several on the way between the inputs (EAP-IG)."""
    loaded = load_model(model, tokenizer=tokenizer)
    encoded = encoded_pairs(loaded, pairs)
    return estimated(loaded, encoded, by_position=by_position, direction=direction, steps=steps).assign_attrs(
        model=loaded.name
    )


def estimated(
    loaded: LoadedModel, encoded: EncodedPairs, *, by_position: bool, direction: Direction, steps: int
) -> xr.Dataset:
    """The estimates of each pair; see `attribution_patch`."""
    model = loaded.model
    encoded = encoded if direction == "noising" else encoded.turned()  # from here on, clean is what is patched
    with borrowed(model):
        with stacked_passes(model, skips=False) as passes:
            passes.plain({"input_ids": encoded.corrupted}, encoded.places)
            others = passes.outputs
            passes.plain({"input_ids": encoded.clean}, encoded.places)
            own, sites = passes.outputs, passes.sites
        shares = [None] if steps == 1 else [(step + 0.5) / steps for step in range(steps)]
        slopes = [answers_difference(HeadGradients(model), encoded, share) for share in shares]
    summed = (3,) if by_position else (2, 3)
    layers: list[np.ndarray] = []
    for call, (patched, donor) in enumerate(zip(own, others, strict=True)):
        gradient = torch.stack([step[call] for step in slopes]).mean(0)
        layers.append(((donor - patched) * gradient).sum(summed).double().cpu().numpy())
    estimates = np.moveaxis(padded_heads(layers, axis=1), 0, 1)
    dims = ("pair", "layer", "head", *(["position"] if by_position else []))
    attrs = {"long_name": "Change of the answer minus the wrong answer, estimated", "units": "logits"}
    return xr.Dataset(
        {"estimate": (dims, estimates, attrs)},
        coords={**layer_coordinates(sites), "head": np.arange(estimates.shape[2])},
        attrs={"steps": steps, "direction": direction},
    )
