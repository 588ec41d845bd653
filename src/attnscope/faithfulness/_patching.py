"""Activation patching: what of the corrupted run, put into the clean one, moves the prediction; and where it flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture import borrowed, layer_coordinates
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._sets import of_layers
from attnscope.faithfulness.passes import (
    EncodedPairs,
    HeadGradients,
    Pair,
    StackedPasses,
    answers_difference,
    kind_of_question,
    stacked_passes,
)

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.capture import LoadedModel, Site

Direction = Literal["noising", "denoising"]
_VARIANTS = 16  # side by side


def patch(
    loaded: LoadedModel,
    pairs: Iterable[Pair],
    *,
    what: Literal["heads", "residual"] = "heads",
    by_position: bool = False,
    direction: Direction = "denoising",
    variants: int = _VARIANTS,
) -> xr.Dataset:
    r"""Put activations of one run into the other, one at a time, and see which run's answer the model gives.

    Parameters
    ----------
    loaded
        The model with its tokenizer.
    pairs
        Clean and corrupted texts, all as long in tokens.
    what
        ``heads``: each head's output. ``residual``: the residual stream after each block, always by position.
    by_position
        Whether heads are patched at one position at a time, or at all.
    direction
        ``denoising``: clean activations go into the corrupted run (does this bring the answer back?); ``noising``: the
        other way round (does this break it?).
    variants
        Most variants side by side.

    Returns
    -------
    xarray.Dataset
        ``difference`` ``(pair, layer, head[, position])`` or ``(pair, block, position)``: logit of the answer minus
        logit of the wrong one in the patched run, and ``recovered``: how far it went from the run that was patched (0)
        to the other (1), of the means over pairs. ``clean`` and ``corrupted`` ``(pair)`` are the differences of the two
        runs.

    Raises
    ------
    AttnscopeError
        What `EncodedPairs.of` and `intervene` raise, or if clean and corrupted texts give the same answers.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> loaded = load_model("bundled", device="cpu")
    >>> pairs = [Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")]
    >>> patch(loaded, pairs).difference.dims
    ('pair', 'layer', 'head')
    """
    encoded, model = _encoded(loaded, pairs), loaded.model
    with borrowed(model), stacked_passes(model) as passes, torch.no_grad():
        from_ids, into_ids = encoded.clean, encoded.corrupted
        if direction == "noising":
            from_ids, into_ids = into_ids, from_ids
        source = _difference(passes.plain({"input_ids": from_ids}, encoded.places)[None], encoded)[0]
        donors = passes.outputs if what == "heads" else passes.states
        base = _difference(passes.plain({"input_ids": into_ids}, encoded.places)[None], encoded)[0]
        _check_apart(source, base)
        if what == "heads":
            found, dims, coords = _heads(passes, encoded, donors, variants, by_position=by_position)
        else:
            found, dims, coords = _residual(passes, encoded, donors, variants)
        sites = passes.sites
    ends = (source, base) if direction == "denoising" else (base, source)
    clean, corrupted = (end.double().cpu().numpy() for end in ends)
    from_base = found.mean(0) - float(base.mean())
    recovered = from_base / float(source.mean() - base.mean())
    positions = {"token": ("position", list(encoded.tokens))} if "position" in dims else {}
    return xr.Dataset(
        {
            "difference": (
                ("pair", *dims),
                found,
                {"long_name": "Answer minus wrong answer", "units": "logits"},
            ),
            "recovered": (
                dims,
                recovered,
                {"long_name": "Way from the patched run to the other", "units": "share"},
            ),
            "clean": ("pair", clean, {"units": "logits"}),
            "corrupted": ("pair", corrupted, {"units": "logits"}),
        },
        coords=coords(sites) | positions,
        attrs={"direction": direction, "model": loaded.name},
    )


def path_patch(
    loaded: LoadedModel,
    pairs: Iterable[Pair],
    receiver: tuple[int, int],
    *,
    direction: Direction = "noising",
) -> xr.Dataset:
    """How much of each head's effect reaches the answer through one later head (path patching; Wang et al. 2022).

    The sender's output of the other run is put in; every other head is held at what it gave, so that what changes
    reaches the receiver through the residual stream and the feed-forward layers alone; what the receiver then gives is
    put into a run that is else as it was.

    Parameters
    ----------
    loaded, pairs, direction
        See `patch`.
    receiver
        ``(layer, head)``; senders are all heads of the layers below.

    Returns
    -------
    xarray.Dataset
        ``difference`` ``(pair, layer, head)`` (NaN from the receiver's layer on) and ``recovered``, as in `patch`.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> loaded = load_model("bundled", device="cpu")
    >>> pairs = [Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")]
    >>> bool(path_patch(loaded, pairs, receiver=(1, 0)).difference.sel(layer=1).isnull().all())
    True
    """
    encoded, model = _encoded(loaded, pairs), loaded.model
    layer, head = receiver
    with borrowed(model), stacked_passes(model) as passes, torch.no_grad():
        from_ids, into_ids = encoded.clean, encoded.corrupted
        if direction == "noising":
            from_ids, into_ids = into_ids, from_ids
        source = _difference(passes.plain({"input_ids": from_ids}, encoded.places)[None], encoded)[0]
        donors = passes.outputs
        base = _difference(passes.plain({"input_ids": into_ids}, encoded.places)[None], encoded)[0]
        _check_apart(source, base)
        own = passes.outputs
        if not (0 < layer < len(own) and 0 <= head < own[layer].shape[1]):
            raise AttnscopeError(
                f"the receiver is {layer}.{head}; expected a head of layers 1 to {len(own) - 1}, with layers below it"
            )
        heads = [output.shape[1] for output in own]
        flat = np.full((len(encoded.clean), sum(heads)), np.nan)
        place = 0
        for sender_layer in range(layer):
            count = heads[sender_layer]
            received = _received(passes, donors[sender_layer], own, sender_layer, layer, count)

            def put_in(_: AttentionCall, output: Tensor, received: Tensor = received) -> Tensor:
                output = output.clone()
                output[:, :, head] = received[:, :, head]
                return output

            logits = passes.run({layer: put_in}, count)
            flat[:, place : place + count] = _difference(logits, encoded).T.double().cpu().numpy()
            place += count
        sites = passes.sites
    found = np.stack([of_layers(row, heads) for row in flat])
    recovered = (found.mean(0) - float(base.mean())) / float(source.mean() - base.mean())
    return xr.Dataset(
        {
            "difference": (("pair", "layer", "head"), found, {"units": "logits"}),
            "recovered": (("layer", "head"), recovered, {"units": "share"}),
        },
        coords={**layer_coordinates(sites), "head": np.arange(max(heads))},
        attrs={"direction": direction, "receiver": f"{layer}.{head}", "model": loaded.name},
    )


def _received(
    passes: StackedPasses, donor: Tensor, own: Sequence[Tensor], sender: int, receiver: int, count: int
) -> Tensor:
    """What the receiver's layer gives when each head of the sender's layer is another run's, all others held."""
    kept: list[Tensor] = []

    def send(_: AttentionCall, output: Tensor) -> Tensor:
        output = output.clone()
        for head in range(count):
            output[head, :, head] = donor[:, head]
        return output

    def hold(call: int) -> Callable[[AttentionCall, Tensor], Tensor]:
        return lambda _, output: own[call].expand_as(output)

    def receive(_: AttentionCall, output: Tensor) -> Tensor:
        kept.append(output.clone())
        return output

    between = {call: hold(call) for call in range(sender + 1, receiver)}
    passes.run({sender: send, **between, receiver: receive}, count)
    return kept[0]


def attribution_patch(loaded: LoadedModel, pairs: Iterable[Pair], *, steps: int = 1) -> xr.Dataset:
    """Estimate noising every head by one backward pass, or by several on the way between the inputs (EAP-IG).

    Parameters
    ----------
    loaded, pairs
        See `patch`.
    steps
        Gradients taken between the clean and the corrupted embeddings; 1 takes it at the clean text (Nanda 2023), more
        are EAP-IG's (Hanna, Pezzelle & Belinkov 2024), by the midpoint rule.

    Returns
    -------
    xarray.Dataset
        ``estimate`` ``(pair, layer, head)``: change of the logit difference, to first order.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> loaded = load_model("bundled", device="cpu")
    >>> pairs = [Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")]
    >>> attribution_patch(loaded, pairs).estimate.dims
    ('pair', 'layer', 'head')
    """
    encoded, model = _encoded(loaded, pairs), loaded.model
    with borrowed(model):
        with stacked_passes(model, skips=False) as passes:
            passes.plain({"input_ids": encoded.corrupted})
            others = passes.outputs
            passes.plain({"input_ids": encoded.clean})
            own, sites = passes.outputs, passes.sites
        shares = [None] if steps == 1 else [(step + 0.5) / steps for step in range(steps)]
        slopes = [answers_difference(HeadGradients(model), encoded, share) for share in shares]
    layers: list[np.ndarray] = []
    for call, (clean, corrupted) in enumerate(zip(own, others, strict=True)):
        gradient = torch.stack([one[call] for one in slopes]).mean(0)
        layers.append(((corrupted - clean) * gradient).sum((2, 3)).double().cpu().numpy())
    heads = [layer.shape[1] for layer in layers]
    flat = np.concatenate(layers, 1)
    return xr.Dataset(
        {
            "estimate": (
                ("pair", "layer", "head"),
                np.stack([of_layers(row, heads) for row in flat]),
                {"long_name": "Change of the answer minus the wrong answer, estimated", "units": "logits"},
            )
        },
        coords={**layer_coordinates(sites), "head": np.arange(max(heads))},
        attrs={"steps": steps, "model": loaded.name},
    )


def _encoded(loaded: LoadedModel, pairs: Iterable[Pair]) -> EncodedPairs:
    kind = kind_of_question(loaded.model)
    if kind == "translation":
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder; pairs are of texts that one stack reads: give a causal or a masked "
            "language model"
        )
    return EncodedPairs.of(pairs, loaded.tokenizer, masked=kind == "masked", device=loaded.model.device)


def _difference(logits: Tensor, encoded: EncodedPairs) -> Tensor:
    """Answer minus wrong answer, ``(variant, pair)``."""
    last = logits[:, :, 0]
    index = torch.stack([encoded.answers, encoded.wrongs], -1).expand(len(last), -1, -1)
    right, wrong = last.gather(-1, index).unbind(-1)
    return right - wrong


def _check_apart(source: Tensor, base: Tensor) -> None:
    if not abs(float(source.mean() - base.mean())) > 1e-6 * float(source.abs().mean() + base.abs().mean()):
        raise AttnscopeError(
            "clean and corrupted texts give the same difference of answers, so nothing can be brought back: give pairs "
            "on which the model answers differently"
        )


def _heads(
    passes: StackedPasses, encoded: EncodedPairs, donors: Sequence[Tensor], most: int, *, by_position: bool
) -> tuple[np.ndarray, tuple[str, ...], Callable[[Sequence[Site]], dict[str, object]]]:
    length = encoded.clean.shape[1]
    heads = [output.shape[1] for output in donors]
    layers: list[np.ndarray] = []
    for call, donor in enumerate(donors):
        cells = [
            (head, place)
            for head in range(heads[call])
            for place in (range(length) if by_position else [None])
        ]
        parts: list[Tensor] = []
        for first in range(0, len(cells), most):
            some = cells[first : first + most]

            def edit(_: AttentionCall, output: Tensor, some: object = some, donor: Tensor = donor) -> Tensor:
                output = output.clone()
                for variant, (head, place) in enumerate(some):  # pyright: ignore[reportArgumentType]
                    at = slice(None) if place is None else slice(place, place + 1)
                    output[variant, :, head, at] = donor[:, head, at]
                return output

            parts.append(_difference(passes.run({call: edit}, len(some)), encoded))
        shape = (len(encoded.clean), heads[call], *([length] if by_position else []))
        layers.append(torch.cat(parts).T.reshape(shape).double().cpu().numpy())
    widest = max(heads)
    padded = [
        np.pad(one, [(0, 0), (0, widest - one.shape[1]), *([(0, 0)] * by_position)], constant_values=np.nan)
        for one in layers
    ]
    dims = ("layer", "head", "position") if by_position else ("layer", "head")
    return (
        np.stack(padded, 1),
        dims,
        lambda sites: {**layer_coordinates(sites), "head": np.arange(widest)},
    )


def _residual(
    passes: StackedPasses, encoded: EncodedPairs, donors: Sequence[Tensor], most: int
) -> tuple[np.ndarray, tuple[str, ...], Callable[[Sequence[Site]], dict[str, object]]]:
    length = encoded.clean.shape[1]
    blocks: list[np.ndarray] = []
    for block, donor in enumerate(donors):
        parts: list[Tensor] = []
        for first in range(0, length, most):
            places = range(first, min(first + most, length))

            def edit(states: Tensor, places: range = places, donor: Tensor = donor) -> Tensor:
                states = states.clone()
                for variant, place in enumerate(places):
                    states[variant, :, place] = donor[:, place]
                return states

            parts.append(_difference(passes.run({}, len(places), {block: edit}), encoded))
        blocks.append(torch.cat(parts).T.double().cpu().numpy())
    return np.stack(blocks, 1), ("block", "position"), lambda _: {"block": np.arange(len(blocks))}
