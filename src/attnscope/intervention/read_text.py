"""One text, what the model predicts of it, and what it predicts with another output in the place of one head's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.capture.forward import forward
from attnscope.capture.verify import is_causal_model
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention.calls import (
    NUMBERS_AT_ONCE,
    attended,
    check_matrices,
    log_probabilities,
    sides_of,
    values_of,
    visible_keys,
    weights_of,
)
from attnscope.intervention.inputs import inputs_of
from attnscope.intervention.predictions import MASKED
from attnscope.kernels.call import AttentionCall
from attnscope.read.windows import window_name
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.intervention.inputs import AnyWindow


class ReadText:
    """A text after a plain forward pass."""

    def __init__(
        self,
        model: PreTrainedModel,
        window: AnyWindow,
        number: int,
        mask_id: int | None = None,
        *,
        masked: float = MASKED,
    ) -> None:
        self.model, self.name, self.mask_id = model, window_name(window, number), mask_id
        self.inputs = inputs_of(model, window)
        self.sides = sides_of(self.inputs)
        places = self.sides.predicting.stop - self.sides.predicting.start
        self.positions = torch.arange(places)
        if mask_id is not None and not is_causal_model(model) and not model.config.is_encoder_decoder:
            self.positions = _masked_places(window, number, masked)
            ids = self.inputs["input_ids"].clone()
            ids[0, self.positions] = mask_id
            self.inputs["input_ids"] = ids
        self.calls: list[AttentionCall] = []
        self.sites: list[Site] = []

        def observe(site: Site, call: AttentionCall) -> Tensor:
            self.sites.append(site)
            self.calls.append(call)
            return attended(call)[0]

        with torch.no_grad(), watching(model, observe):
            output = forward(model, self.inputs, lambda _: self.name)
        if output.ndim == 2:  # noqa: PLR2004 one prediction of the whole text
            self.positions = torch.tensor([0])
        self.log_probabilities = log_probabilities(output, self.positions)[0]

    def weights(self, layer: int, head: int) -> Float[np.ndarray, "query key"]:
        """A of one head, float64."""
        return weights_of(self._one_head(layer, head))[0, 0].double().cpu().numpy()

    def values(self, layer: int, head: int) -> Float[Tensor, "key value_width"]:
        """V of one head."""
        return values_of(self._one_head(layer, head))[0, 0]

    def visible(self, layer: int, head: int) -> np.ndarray:
        """Which keys its queries may look at, ``(query, key)``."""
        return visible_keys(self.calls[layer], head).cpu().numpy()

    def output(self, layer: int, head: int) -> Float[Tensor, "query value_width"]:
        """What the head gave."""
        return attended(self._one_head(layer, head))[0][0, 0]

    def of_weights(
        self, layer: int, head: int, weights: Float[np.ndarray, "variant query key"]
    ) -> Float[Tensor, "variant query value_width"]:
        """What the head gives with other weights."""
        values = self.values(layer, head)
        return torch.from_numpy(weights).to(values) @ values

    def changed(
        self, layer: int, head: int, outputs: Float[Tensor, "variant query value_width"]
    ) -> Float[Tensor, "variant prediction outcome"]:
        """Log probabilities with other outputs in the place of one head's: one forward pass a variant."""
        if outputs.requires_grad:
            check_matrices(self.calls, self.name, in_a_graph=True)
        sizes = [call.query.shape[1] * call.query.shape[2] * call.key.shape[2] for call in self.calls]
        size = max(1, NUMBERS_AT_ONCE // max(*sizes, self.log_probabilities.numel()))
        return torch.cat([self._changed(layer, head, part) for part in outputs.split(size)])

    def effects(
        self, layer: int, head: int, outputs: Float[Tensor, "variant query value_width"]
    ) -> dict[str, Float[np.ndarray, "variant prediction"]]:
        """Distances of predictions from the plain ones: ``tvd`` (share), ``jsd`` (nats), ``flipped`` (0 or 1)."""
        parts: list[list[Tensor]] = [[], [], []]
        before = self.log_probabilities
        for part in outputs.detach().split(max(1, NUMBERS_AT_ONCE // max(1, before.numel()))):
            after = self.changed(layer, head, part)
            parts[0].append(prediction_distance(after, before))
            parts[1].append(prediction_divergence(after.exp(), before.exp()))
            parts[2].append((after.argmax(-1) != before.argmax(-1)).double())
        names = ("tvd", "jsd", "flipped")
        return {name: torch.cat(part).double().cpu().numpy() for name, part in zip(names, parts, strict=True)}

    def by_weights(self, layer: int, head: int) -> Float[np.ndarray, "query key"]:
        """Derivative of the sum of the predictions' log probabilities, each of its likeliest outcome, by A."""
        with torch.enable_grad():
            output = self.output(layer, head).detach().requires_grad_()
            after = self.changed(layer, head, output[None])[0]
            best = after.gather(-1, self.log_probabilities.argmax(-1, keepdim=True)).sum()
            (slope,) = torch.autograd.grad(best, output, materialize_grads=True, allow_unused=True)
        values = self.values(layer, head)
        return (slope.to(values) @ values.T).double().cpu().numpy()

    def _changed(self, layer: int, head: int, outputs: Tensor) -> Tensor:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            output = attended(call)[0]
            if site.index == layer:
                output = output.clone()
                output[:, head] = outputs.to(output.dtype)
            return output

        several = {name: tensor.expand(len(outputs), *tensor.shape[1:]) for name, tensor in self.inputs.items()}
        with torch.set_grad_enabled(outputs.requires_grad), watching(self.model, observe):
            return log_probabilities(forward(self.model, several, lambda _: self.name), self.positions)

    def _one_head(self, layer: int, head: int) -> AttentionCall:
        call = self.calls[layer]
        own, other = slice(head, head + 1), slice(head // call.group, head // call.group + 1)

        def of_head(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.shape[1] == 1 else tensor[:, own]

        return AttentionCall(
            call.query[:, own],
            call.key[:, other],
            call.value[:, other],
            scale=call.scale,
            causal=call.causal,
            mask=of_head(call.mask),
            bias=of_head(call.bias),
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks[own],
        )


def prediction_distance(
    after: Float[Tensor, "*batch outcome"], before: Float[Tensor, "*others"]
) -> Float[Tensor, "*batch"]:
    """TVD of log probabilities, in the way of gradients."""
    return (after.exp() - before.exp()).abs().sum(-1) / 2


def prediction_divergence(p: Float[Tensor, "*batch outcome"], q: Float[Tensor, "*others"]) -> Float[Tensor, "*batch"]:
    """JSD in nats, in the way of gradients."""
    return (_information(p) + _information(q) - 2 * _information((p + q) / 2)).sum(-1).clamp_min(0.0) / 2


def _information(p: Tensor) -> Tensor:
    """P ln p, whose slope is finite at 0, where a mask hides a key."""
    return p * p.clamp_min(torch.finfo(p.dtype).tiny).log()


def _masked_places(window: AnyWindow, number: int, masked: float) -> Int[Tensor, " prediction"]:
    """Some tokens of the text, none of them special."""
    special = np.array(getattr(window, "special", ()) or [False] * len(window), dtype=bool)
    places = np.flatnonzero(~special)
    if not places.size:
        raise AttnscopeError(
            f"{window_name(window, number)} has no token but special ones, so that none can be masked: leave it out"
        )
    count = max(1, round(masked * places.size))
    return torch.from_numpy(np.sort(np.random.default_rng(number).choice(places, count, replace=False)))
