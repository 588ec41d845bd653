"""Estimates of a head's effect from gradients: importance and attribution patching."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attnscope.capture.families import result_of
from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.capture.weights import embedding_within, embeddings_of, linear_layers, logits_at
from attnscope.intervention.calls import output_with_gradient
from attnscope.intervention.questions import Embeddings, Questions
from attnscope.intervention.replacements import donor_positions
from attnscope.kernels.call import AttentionCall
from attnscope.support.errors import AttnscopeError
from attnscope.support.state import frozen

if TYPE_CHECKING:
    from attnscope.intervention.pairs import EncodedPairs

WITHOUT_ESTIMATES = "use steps=0 (--steps 0), which leaves out estimates"

#: Maps the number of a call and its output to the output that replaces it.
Gate = Callable[[int, Tensor], Tensor]


def loss_gradients(
    model: PreTrainedModel, questions: Questions, gate: Gate | None = None, towards_donor: float | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Output of each call and the gradient of the loss with respect to it, ``(text, head, query, value_width)``."""
    batch, rows = questions.batch, questions.rows
    inputs = batch.inputs(model)
    others: dict[str, Tensor] = {}
    if towards_donor is not None:
        for name, side in (("input_ids", batch.text), ("decoder_input_ids", batch.target)):
            if name in inputs:
                # the donor of a text is the one before it in the batch
                others[name] = side.input_ids.roll(rows, 0).gather(1, donor_positions(side.valid, rows))
        if not others:  # images and sounds of one size
            others = {name: values.roll(1, 0) for name, values in inputs.items()}

    positions = None if isinstance(questions, Embeddings) else questions.positions

    def loss(logits: Tensor) -> Tensor:
        asked = questions.at(logits) if positions is None else logits
        return questions.scores(asked[None])["loss"].sum()

    return head_gradients(model, inputs, loss, positions, gate, others, towards_donor or 0.0)


def answers_difference(model: PreTrainedModel, pairs: EncodedPairs, share: float | None) -> list[Tensor]:
    """Gradient at each call of a pair's metric, with embeddings moved by `share` to the corrupted text."""
    clean, others = pairs.inputs

    def measure(logits: Tensor) -> Tensor:
        return pairs.measure(logits, clean).sum()

    moved = {} if share is None else others
    layers = head_gradients(model, clean, measure, pairs.predicting, None, moved, share or 0.0)
    return [gradient for _, gradient in layers]


def check_gradients(model: PreTrainedModel, instead: str) -> None:
    """Raise an error if a kind of linear layers passes no gradient on: estimates would be 0 without a reason."""
    layers: dict[type, tuple[str, Any]] = {type(layer): (name, layer) for name, layer in linear_layers(model)}
    for kind, (name, layer) in layers.items():
        if kind in {nn.Linear, Conv1D} or embedding_within(layer) is not None:
            continue
        rows = torch.ones(1, layer.in_features, dtype=model.dtype, device=device_of(layer), requires_grad=True)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's of such layers
            slope: Any = torch.autograd.grad(layer.forward(rows).sum(), rows, allow_unused=True)[0]
        if slope is None:
            raise AttnscopeError(
                f"{name} is a {kind.__name__} of {kind.__module__.partition('.')[0]} that passes no gradient on, so "
                f"gradients cannot estimate effects: {instead}"
            )


def head_gradients(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    quantity: Callable[[Tensor], Tensor],
    positions: Int[Tensor, "text prediction"] | None,
    gate: Gate | None = None,
    others: Mapping[str, Tensor] | None = None,
    share: float = 0.0,
) -> list[tuple[Tensor, Tensor]]:
    """Output of each call, and the gradient of a function of the logits, at all positions or at some, by it."""
    check_gradients(model, WITHOUT_ESTIMATES)
    outputs: list[Tensor] = []

    def observe(_: Site, call: AttentionCall) -> Tensor:
        output = output_with_gradient(call)
        if gate is not None:
            output = gate(len(outputs), output)
        # weights are frozen: the graph begins at the first output of heads
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        outputs.append(output)
        return output

    inputs, others = inputs_moved(inputs, others or {}, share)
    moved = embeddings_moved(model, inputs, others, share)
    with frozen(model), watching(model, observe), moved, logits_at(model, positions) as chosen, torch.enable_grad():
        wanted = quantity(chosen(result_of(model, model(**inputs))))
        # materialised zeros: a head after the last question reaches no logit
        gradients = torch.autograd.grad(wanted, outputs, allow_unused=True, materialize_grads=True)
    return [(output.detach(), gradient) for output, gradient in zip(outputs, gradients, strict=True)]


def importance(layers: Sequence[tuple[Tensor, Tensor]]) -> list[Float[np.ndarray, "window head"]]:
    r"""Head importance of Michel et al. (2019), equation 2, for each text."""
    return [(output * gradient).sum((2, 3)).abs().double().cpu().numpy() for output, gradient in layers]


def attribution(
    layers: Sequence[tuple[Tensor, Tensor]], replacements: Sequence[Tensor]
) -> list[Float[np.ndarray, "window head"]]:
    r"""Attribution patching: the first-order change of the loss if O' replaces the heads' output."""
    return [
        ((other - output) * gradient).sum((2, 3)).double().cpu().numpy()
        for (output, gradient), other in zip(layers, replacements, strict=True)
    ]


def gates_towards(replacements: Sequence[Tensor], share: float) -> Gate:
    """Move every head's output towards its replacement: 0 leaves it, 1 replaces it."""
    return lambda call, output: torch.lerp(output, replacements[call].to(output), share)


def inputs_moved(
    inputs: dict[str, Tensor], others: Mapping[str, Tensor], share: float
) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
    """Images or sounds, moved by `share` towards others; of token ids, embeddings are left to move."""
    waves = {name: other for name, other in others.items() if other.is_floating_point()}
    moved = {name: torch.lerp(inputs[name], other, share) for name, other in waves.items()}
    return inputs | moved, {name: other for name, other in others.items() if name not in moved}


@contextmanager
def embeddings_moved(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], others: Mapping[str, Tensor], share: float
) -> Generator[None]:
    if not others:
        yield
        return
    pairs = [(inputs[name], other) for name, other in others.items()]

    def move(module: nn.Module, arguments: tuple[Any, ...], embedded: Tensor) -> Tensor:
        for ids, other in pairs:
            if ids.shape == arguments[0].shape and bool((ids == arguments[0]).all()):
                return torch.lerp(embedded, module.forward(other), share)
        return embedded

    with attached(table.register_forward_hook(move) for table in {*embeddings_of(model)}):
        yield
