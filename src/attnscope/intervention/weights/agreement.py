"""Whether a head's weights rank tokens as gradients and leaving tokens out do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention.arrays.agreement import rank_agreement
from attnscope.intervention.edits import embedding_leaves
from attnscope.intervention.effects import leave_one_out
from attnscope.intervention.given import InterventionInput, check_matrices
from attnscope.intervention.session import attended, log_probabilities
from attnscope.intervention.weights.over_heads import TestOptions, over_heads, prepared
from attnscope.intervention.weights.read_text import ReadText
from attnscope.kernels.call import AttentionCall
from attnscope.support.arguments import Count, validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

_ONE_IN_TWENTY = 0.05
_POINT = 1.6448536269514722  # of a normal distribution, above which 5 % lie
_VARIABLES = {
    "tau_gradient": ("Kendall's tau of weights and gradients, mean over predictions", "1"),
    "tau_gradient_null": ("95 % point of that mean for weights in random order", "1"),
    "significant_gradient": ("Predictions whose tau has a chance of 5 % or less; by chance, 0.05", "share"),
    "tau_leave_one_out": ("Kendall's tau of weights and leaving tokens out, mean over predictions", "1"),
    "tau_leave_one_out_null": ("95 % point of that mean for weights in random order", "1"),
    "significant_leave_one_out": ("Predictions whose tau has a chance of 5 % or less; by chance, 0.05", "share"),
    "tau_between": ("Kendall's tau of gradients and leaving tokens out, mean over predictions", "1"),
}


@validated
def agreement_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    predictions: Count = 8,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    r"""Rank tokens by a head's weights, by gradients and by leaving each out, and see whether the ranks agree."""
    given, chosen = prepared(model, texts, options)

    def of_text(text: ReadText, _: int) -> Callable[..., dict[str, float]]:
        number = len(text.positions)
        which = np.unique(np.linspace(0, number - 1, min(predictions, number)).round().astype(int))
        places = text.positions[torch.from_numpy(which)]
        slopes = token_gradients(text, places)
        left_out = leave_one_out(text.model, text.inputs, places, text.name).T.double().cpu().numpy()

        def of_head(text: ReadText, layer: int, head: int, _: np.random.Generator) -> dict[str, float]:
            queries, keys = text.sides.of(text.sites[layer].kind)
            if queries != text.sides.predicting:
                return {}
            return compared(
                text.weights(layer, head)[places],
                (slopes[:, keys], left_out[:, keys]),
                _counted(text.visible(layer, head), places.numpy(), own=queries == keys),
            )

        return of_head

    return over_heads(given, "agreement_test", _VARIABLES, of_text, **chosen)


def compared(
    weights: Float[np.ndarray, "prediction key"],
    importances: tuple[Float[np.ndarray, "prediction key"], Float[np.ndarray, "prediction key"]],
    counted: np.ndarray,
) -> dict[str, float]:
    """Agreement of weights with two importances, and of these with each other."""
    numbers: dict[str, float] = {}
    kept = np.where(counted, weights, 0.0)
    for name, importance in zip(("gradient", "leave_one_out"), importances, strict=True):
        ranks = rank_agreement(kept, importance, counted)
        known = np.isfinite(ranks.tau.values)
        if not known.any():
            continue
        size = counted.sum(1)[known]
        spread = np.sqrt((2 * (2 * size + 5) / (9 * size * (size - 1))).sum()) / known.sum()
        numbers[f"tau_{name}"] = float(ranks.tau.values[known].mean())
        numbers[f"tau_{name}_null"] = float(_POINT * spread)
        numbers[f"significant_{name}"] = float((ranks.p_value.values[known] <= _ONE_IN_TWENTY).mean())
    between = rank_agreement(np.where(counted, importances[0], 0.0), importances[1], counted).tau.values
    if np.isfinite(between).any():
        numbers["tau_between"] = float(np.nanmean(between))
    return numbers


def _counted(visible: np.ndarray, places: Int[np.ndarray, " prediction"], *, own: bool) -> np.ndarray:
    """Keys that count: those that are seen, but the place itself."""
    counted = visible[places].copy()
    if own:
        counted[np.arange(len(places)), places] = False
    return counted


def token_gradients(text: ReadText, places: Int[Tensor, " prediction"]) -> Float[np.ndarray, "prediction token"]:
    """Norm of the gradient of the likeliest outcome's log probability by each token's vector, source before target."""

    def observe(_: Site, call: AttentionCall) -> Tensor:
        return attended(call)[0]

    check_matrices(text.calls, text.name, in_a_graph=True)
    with torch.enable_grad(), embedding_leaves(text.model, text.inputs) as leaves, watching(text.model, observe):
        output = forward(text.model, text.inputs, lambda _: text.name)
        best = log_probabilities(output, places)[0].amax(-1)
    if len(leaves) < len(text.inputs):
        raise AttnscopeError(
            f"{type(text.model).__name__} looks its token ids up in no table that was seen, so that there is no "
            "gradient by its tokens: choose another test"
        )
    gradients: list[np.ndarray] = []
    for score in best:
        slopes = torch.autograd.grad(score, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        gradients.append(torch.cat([slope[0].norm(dim=-1) for slope in slopes]).double().cpu().numpy())
    return np.stack(gradients)
