"""The effect of each head alone: measured by taking it out, and estimated from gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.intervention.passes.gradients import HeadGradients, attribution, gates_towards, importance
from attnscope.intervention.passes.questions import Questions
from attnscope.intervention.passes.replacements import HeadMeans, Outputs, replacing
from attnscope.intervention.passes.stack import StackedPasses, stacked_passes
from attnscope.store.arrays import padded_heads
from attnscope.support.arguments import validated
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.intervention.passes.replacements import Ablation
    from attnscope.intervention.session import PredictionSession

    #: Dimensions and values
    _Variable = tuple[str | tuple[str, ...], np.ndarray]

ESTIMATES = ("attribution", "integrated", "eap_ig")
_LOGITS = 1 << 28  # bytes of the logits of variants at once
_TOKENS = 1 << 15  # tokens of variants at once on a GPU
_STATES = 1 << 19  # numbers of their states at once on a CPU, whose cache holds what a layer makes of them
_WORDS = {
    "loss_change": ("Change of the loss without the head", "nats"),
    "kl": ("KL divergence of the predictions without the head", "nats"),
    "accuracy_change": ("Change of the share of right tokens without the head", "share"),
    "estimate": ("Change of the loss without the head, estimated", "nats"),
    "importance": ("Size of the loss's derivative in a gate on the head", "nats"),
    "loss": ("Loss of the model as it is", "nats"),
    "accuracy": ("Share of right tokens of the model as it is", "share"),
    "guess_loss": ("Loss of equal probabilities for all tokens", "nats"),
    "questions": ("Tokens asked for", "tokens"),
}


@validated
def effects(
    session: PredictionSession,
    ablations: Sequence[Ablation],
    *,
    variants: int | None = None,
    steps: int = 5,
    done: Callable[[range], bool] = lambda _: False,
    progress: Tell | None = None,
) -> Iterator[xr.Dataset | None]:
    """Effects of every head on every text, batch after batch; None for a batch that is done."""
    tell = progress or no_progress
    for place in session.slices():
        if done(range(place.start, place.stop)):
            yield None
            continue
        means = session.means if "mean" in ablations else None
        yield _of_batch(session, place, ablations, means, variants, steps)
        tell(Progress("heads taken out", place.stop / len(session.windows), {"windows": place.stop}))


def _of_batch(
    session: PredictionSession,
    place: slice,
    ablations: Sequence[Ablation],
    means: HeadMeans | None,
    variants: int | None,
    steps: int,
) -> xr.Dataset:
    asked = session.batch(place)
    with stacked_passes(session.model, skips=session.skips) as passes, torch.no_grad():
        before = passes.plain(asked.reading.inputs(session.model), asked.places, session.name(place.start))
        scores = {name: value[0] for name, value in asked.scores(before[None]).items()}
        stands_in: dict[Ablation, list[Tensor]] = {
            ablation: session.stand_ins(asked, passes.outputs, passes.sites, ablation, means) for ablation in ablations
        }
        most = variants or most_variants(asked, before, passes.outputs)
        layers = [
            _of_layer(passes, asked, before, call, {name: every[call] for name, every in stands_in.items()}, most)
            for call in range(len(passes.outputs))
        ]
    changes = {name: _stacked([layer[name] for layer in layers]) for name in ("loss", "kl", "accuracy")}
    heads = ("window", "ablation", "layer", "head")
    variables: dict[str, _Variable] = {
        "loss_change": (heads, changes["loss"] - _column(scores["loss"])),
        "kl": (heads, changes["kl"]),
        "accuracy_change": (heads, changes["accuracy"] - _column(scores["accuracy"])),
        **{name: ("window", value.double().cpu().numpy()) for name, value in scores.items()},
        "guess_loss": ("window", np.full(len(asked), np.log(before.shape[-1]))),
        "questions": ("window", (asked.labels >= 0).sum(1).cpu().numpy()),
    }
    if steps:
        variables["importance"], variables["estimate"] = _estimates(session, asked, stands_in, steps)
    coordinates = {
        "window": np.arange(place.start, place.stop),
        "source": ("window", np.array(session.documents[place], dtype=object)),
        "ablation": list(ablations),
        **layer_coordinates(passes.sites),
        "head": np.arange(changes["loss"].shape[-1]),
        **({"estimator": list(ESTIMATES)} if steps else {}),
    }
    dataset = xr.Dataset(variables, coords=coordinates)
    for name, (words, units) in _WORDS.items():
        if name in dataset:
            dataset[name].attrs = {"long_name": words, "units": units}
    return dataset


def _of_layer(
    passes: StackedPasses, asked: Questions, before: Tensor, call: int, stands_in: Mapping[Ablation, Tensor], most: int
) -> dict[str, np.ndarray]:
    """Scores ``(text, ablation, head)`` without each head of one layer."""
    heads = passes.outputs[call].shape[1]
    wanted = [(head, other) for other in stands_in.values() for head in range(heads)]
    parts: dict[str, list[Tensor]] = {}
    for first in range(0, len(wanted), most):
        some = wanted[first : first + most]
        edit = replacing([head for head, _ in some], [other for _, other in some])
        logits = passes.run({call: edit}, len(some))
        for name, value in asked.scores(logits, before).items():
            parts.setdefault(name, []).append(value)
    return {
        name: torch.cat(values).T.reshape(len(asked), len(stands_in), heads).double().cpu().numpy()
        for name, values in parts.items()
    }


def _estimates(
    session: PredictionSession, asked: Questions, stands_in: dict[Ablation, list[Tensor]], steps: int
) -> tuple[_Variable, _Variable]:
    """Importance ``(window, layer, head)``, and estimates ``(text, estimator, ablation, layer, head)``."""
    gradients = HeadGradients(session.model)
    outputs = gradients.of(asked)
    middles = [(step + 0.5) / steps for step in range(steps)]  # the midpoint rule
    first_order, integrated, by_input = [], [], []
    for ablation, others in stands_in.items():
        first_order.append(_stacked(attribution(outputs, others)))
        along = [gradients.of(asked, gates_towards(others, share)) for share in middles]
        slopes = [_gate_gradient(step, others, share) for step, share in zip(along, middles, strict=True)]
        integrated.append(np.mean(slopes, 0))
        if ablation == "resample":
            moved = [gradients.of(asked, towards_donor=share) for share in middles]
            mean = [
                (output, torch.stack([step[call][1] for step in moved]).mean(0))
                for call, (output, _) in enumerate(outputs)
            ]
            by_input.append(_stacked(attribution(mean, others)))
        else:
            by_input.append(np.full_like(first_order[-1], np.nan))
    estimates = np.stack([np.stack(steps, 1) for steps in (first_order, integrated, by_input)], 1)
    return (
        (("window", "layer", "head"), _stacked(importance(outputs))),
        (("window", "estimator", "ablation", "layer", "head"), estimates),
    )


def _gate_gradient(outputs: Sequence[tuple[Tensor, Tensor]], others: Sequence[Tensor], share: float) -> np.ndarray:
    r"""Derivative of the loss in each head's gate, where every gate stands at `share`."""
    remaining = [(output, gradient / (1 - share)) for output, gradient in outputs]
    return _stacked(attribution(remaining, others))


def most_variants(asked: Questions, before: Tensor, outputs: Outputs) -> int:
    """How many variants of a batch stand side by side."""
    return variants_at_once(before, asked.reading.text.input_ids.numel(), outputs)


def variants_at_once(logits: Tensor, tokens: int, outputs: Outputs) -> int:
    """How many variants of a pass with these logits: 256 MiB of them at most, and what the device is quickest with."""
    by_logits = _LOGITS // (logits.numel() * logits.element_size())
    most = _TOKENS if logits.device.type != "cpu" else _STATES // _width(outputs)
    return max(1, min(by_logits, most // tokens))


def _width(outputs: Outputs) -> int:
    """Numbers that a token has, all heads together."""
    return max(output.shape[1] * output.shape[3] for output in outputs)


def _stacked(layers: Sequence[np.ndarray]) -> np.ndarray:
    """Layers ``(text, ..., head)`` as one array ``(text, ..., layer, head)``; NaN beyond a layer's heads."""
    return np.moveaxis(padded_heads(layers, axis=layers[0].ndim - 1), 0, -2)


def _column(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()[:, None, None, None]
