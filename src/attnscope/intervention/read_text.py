"""Predictions of a model on one text, with its own heads or with one head's output replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.forward import forward
from attnscope.capture.verify import is_causal_model
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention import calls
from attnscope.intervention.predictions import MASKED
from attnscope.kernels import full
from attnscope.kernels.call import AttentionCall
from attnscope.read.windows import Window, window_name
from attnscope.support.errors import AttnscopeError


class ReadText:
    """A text after an unchanged forward pass."""

    def __init__(
        self,
        model: PreTrainedModel,
        window: Window | Sequence[int],
        number: int,
        mask_id: int | None = None,
        *,
        masked: float = MASKED,
    ) -> None:
        self.model, self.name, self.mask_id = model, window_name(window, number), mask_id
        self.inputs = calls.inputs_of(model, window)
        self.sides = calls.sides_of(self.inputs)
        self.positions = torch.arange(self.sides.predicting.stop - self.sides.predicting.start)
        if mask_id is not None and not is_causal_model(model) and not model.config.is_encoder_decoder:
            self.positions = _masked_positions(window, number, masked)
            ids = self.inputs["input_ids"].clone()
            ids[0, self.positions] = mask_id
            self.inputs["input_ids"] = ids
        self.calls: list[AttentionCall] = []
        self.sites: list[Site] = []

        def observe(site: Site, call: AttentionCall) -> Tensor:
            self.sites.append(site)
            self.calls.append(call)
            return full.attended(call)[0]

        with torch.no_grad(), watching(model, observe):
            output = forward(model, self.inputs, lambda _: self.name)
        if output.ndim == 2:  # noqa: PLR2004 one prediction for the whole text
            self.positions = torch.tensor([0])
        self.log_probabilities = calls.log_probabilities(output, self.positions)[0]

    def head(self, layer: int, head: int) -> OneHead:
        return OneHead(self, layer, head)


@dataclass(eq=False)
class OneHead:
    """One head on a text, and the predictions if its output is replaced."""

    text: ReadText
    layer: int
    number: int

    @cached_property
    def weights(self) -> Float[np.ndarray, "query key"]:
        """Attention weights, float64."""
        return full.weights_of(self._call)[0, 0].double().cpu().numpy()

    @cached_property
    def values(self) -> Float[Tensor, "key value_width"]:
        return full.values_of(self._call)[0, 0]

    @cached_property
    def visible(self) -> Bool[np.ndarray, "query key"]:
        """The keys that its queries may attend to."""
        return self.text.calls[self.layer].allowed(0, self.number).cpu().numpy()

    @property
    def output(self) -> Float[Tensor, "query value_width"]:
        return full.attended(self._call)[0][0, 0]

    def of_weights(self, weights: Float[np.ndarray, "variant query key"]) -> Float[Tensor, "variant query value_width"]:
        """Output of the head with other weights."""
        return torch.from_numpy(weights).to(self.values) @ self.values

    def changed(
        self, outputs: Float[Tensor, "variant query value_width"]
    ) -> Float[Tensor, "variant prediction outcome"]:
        """Log probabilities with the head's output replaced, one forward pass for each variant."""
        text = self.text
        if outputs.requires_grad:
            calls.check_matrices(text.calls, text.name, in_a_graph=True)
        sizes = [call.query.shape[1] * call.query.shape[2] * call.key.shape[2] for call in text.calls]
        size = max(1, calls.NUMBERS_AT_ONCE // max(*sizes, text.log_probabilities.numel()))
        return torch.cat([self._changed(part) for part in outputs.split(size)])

    def effects(
        self, outputs: Float[Tensor, "variant query value_width"]
    ) -> dict[str, Float[np.ndarray, "variant prediction"]]:
        """Distances from the unchanged predictions: ``tvd`` (share), ``jsd`` (nats), ``flipped`` (0 or 1)."""
        parts: list[list[Tensor]] = [[], [], []]
        before = self.text.log_probabilities
        for part in outputs.detach().split(max(1, calls.NUMBERS_AT_ONCE // max(1, before.numel()))):
            after = self.changed(part)
            parts[0].append(prediction_distance(after, before))
            parts[1].append(prediction_divergence(after.exp(), before.exp()))
            parts[2].append((after.argmax(-1) != before.argmax(-1)).double())
        names = ("tvd", "jsd", "flipped")
        return {name: torch.cat(part).double().cpu().numpy() for name, part in zip(names, parts, strict=True)}

    def by_weights(self) -> Float[np.ndarray, "query key"]:
        """Derivative of the sum of the log probabilities of the likeliest outcomes, with respect to the weights."""
        with torch.enable_grad():
            output = self.output.detach().requires_grad_()
            best = self.changed(output[None])[0].gather(-1, self.text.log_probabilities.argmax(-1, keepdim=True)).sum()
            (slope,) = torch.autograd.grad(best, output, materialize_grads=True, allow_unused=True)
        return (slope.to(self.values) @ self.values.T).double().cpu().numpy()

    def _changed(self, outputs: Tensor) -> Tensor:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            output = full.attended(call)[0]
            if site.index == self.layer:
                output = output.clone()
                output[:, self.number] = outputs.to(output.dtype)
            return output

        text, copies = self.text, len(outputs)
        several = {name: tensor.expand(copies, *tensor.shape[1:]) for name, tensor in text.inputs.items()}
        with torch.set_grad_enabled(outputs.requires_grad), watching(text.model, observe):
            return calls.log_probabilities(forward(text.model, several, lambda _: text.name), text.positions)

    @property
    def _call(self) -> AttentionCall:
        """The attention call of this head alone."""
        return self.text.calls[self.layer].part(slice(self.number, self.number + 1))


def prediction_distance(
    after: Float[Tensor, "*batch outcome"], before: Float[Tensor, "*others"]
) -> Float[Tensor, "*batch"]:
    """TVD of log probabilities, differentiable."""
    return (after.exp() - before.exp()).abs().sum(-1) / 2


def prediction_divergence(p: Float[Tensor, "*batch outcome"], q: Float[Tensor, "*others"]) -> Float[Tensor, "*batch"]:
    """JSD in nats, differentiable."""
    return (_information(p) + _information(q) - 2 * _information((p + q) / 2)).sum(-1).clamp_min(0.0) / 2


def _information(p: Tensor) -> Tensor:
    """P ln p with a finite slope at 0, for masked keys."""
    return p * p.clamp_min(torch.finfo(p.dtype).tiny).log()


def _masked_positions(window: Window | Sequence[int], number: int, masked: float) -> Int[Tensor, " prediction"]:
    """Positions of some tokens of the text, without special ones."""
    positions = np.flatnonzero(~np.array(getattr(window, "special", ()) or [False] * len(window), dtype=bool))
    if not positions.size:
        raise AttnscopeError(
            f"{window_name(window, number)} has only special tokens, so none can be masked. Leave it out"
        )
    count = max(1, round(masked * positions.size))
    return torch.from_numpy(np.sort(np.random.default_rng(number).choice(positions, count, replace=False)))
