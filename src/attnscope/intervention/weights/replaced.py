"""Other weights in the place of a head's: mixed up, or equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.intervention.arrays.adversarial import Objective, adversarial_weights
from attnscope.intervention.arrays.changes import erased_weights, permuted_weights, total_variation, uniform_weights
from attnscope.intervention.given import InterventionInput
from attnscope.intervention.weights.over_heads import TestOptions, over_heads, prepared
from attnscope.intervention.weights.read_text import ReadText
from attnscope.support.arguments import Count, Draws, validated
from attnscope.support.checks import check_real
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

if TYPE_CHECKING:
    Weights = Float[np.ndarray, "query key"]

EFFECTS = {
    "tvd": ("Total variation distance of the predictions", "share"),
    "jsd": ("Jensen-Shannon divergence of the predictions", "nats"),
    "flipped": ("Predictions whose likeliest outcome is another", "share"),
    "tvd_null": ("Distance of the predictions by random changes of the head's output of the same size", "share"),
    "weights_tvd": ("Total variation distance of the weights, mean over rows", "share"),
}


@validated
def permutation_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    draws: Draws = 100,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    """Mix up each row of a head's weights, and see how far predictions move."""
    given, chosen = prepared(model, texts, options)

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        weights, allowed = text.weights(layer, head), text.visible(layer, head)
        several = np.stack([permuted_weights(weights, generator, allowed) for _ in range(draws)])
        numbers = replaced(text, layer, head, weights, several, generator)
        return numbers | {"max_weight": float(weights.max(1).mean())}

    variables = EFFECTS | {"max_weight": ("Largest weight of a row, mean over rows", "share")}
    return over_heads(given, "permutation_test", variables, lambda _, __: of_head, **chosen)


@validated
def uniform_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    draws: Draws = 20,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    """Give each row of a head equal weights over what it may see, and see how far predictions move."""
    given, chosen = prepared(model, texts, options)

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        weights = text.weights(layer, head)
        equal = uniform_weights(weights, text.visible(layer, head))
        return replaced(text, layer, head, weights, equal[None], generator, draws)

    return over_heads(given, "uniform_test", EFFECTS, lambda _, __: of_head, **chosen)


def replaced(
    text: ReadText,
    layer: int,
    head: int,
    weights: Weights,
    several: Float[np.ndarray, "variant query key"],
    generator: np.random.Generator,
    draws: int = 1,
) -> dict[str, float]:
    """What other weights do to the predictions, medians over the variants, and what random changes of their size do."""
    outputs = text.of_weights(layer, head, several)
    effects = text.effects(layer, head, outputs)
    random = text.effects(layer, head, same_size(outputs, text.output(layer, head), generator, draws))
    medians = {name: float(np.median(values.mean(1))) for name, values in effects.items()}
    moved = [float(total_variation(weights, other).mean()) for other in several]
    return medians | {"tvd_null": float(np.median(random["tvd"].mean(1))), "weights_tvd": float(np.median(moved))}


def same_size(
    outputs: Float[Tensor, "variant query value_width"],
    before: Float[Tensor, "query value_width"],
    generator: np.random.Generator,
    draws: int = 1,
) -> Float[Tensor, "changed query value_width"]:
    """Outputs that are as far from a head's own, row by row, in random directions: `draws` for each variant."""
    before = before.to(outputs)
    size = (outputs - before).norm(dim=-1, keepdim=True).repeat_interleave(draws, 0)
    direction = torch.from_numpy(generator.normal(size=(len(size), *outputs.shape[1:]))).to(outputs)
    return before + size * direction / direction.norm(dim=-1, keepdim=True)


ORDERS = ("attention", "gradient", "product", "random")
FRACTIONS = tuple(np.linspace(0.1, 1.0, 10).round(3).tolist())
_VARIABLES = {
    "flipped": ("Predictions that flipped at this fraction or before", "share", "order", "fraction"),
    "tvd": ("Total variation distance of the predictions", "share", "order", "fraction"),
    "fraction_to_flip": ("Fraction at which a prediction flips, mean over those that do", "share", "order"),
}


@validated
def erasure_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    draws: Draws = 5,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    """Erase a head's weights, the most important first, until decisions flip."""
    shares = [float(share) for share in fractions]
    for share in shares:
        check_real(0.0, 1.0, fractions=share)
    if not shares or sorted(set(shares)) != shares:
        raise AttnscopeError(f"fractions are {shares[:5]}; expected numbers that rise, such as 0.1, 0.2, 0.5, 1.0")
    given, chosen = prepared(model, texts, options)

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, Any]:
        weights, slope = text.weights(layer, head), text.by_weights(layer, head)
        known = {"attention": weights, "gradient": slope, "product": weights * slope}
        curves = {name: [_curve(text, layer, head, weights, by, shares)] for name, by in known.items()}
        random = [generator.random(weights.shape) for _ in range(draws)]
        curves["random"] = [_curve(text, layer, head, weights, by, shares) for by in random]
        return {
            "flipped": [np.mean([flips.mean(1) for flips, _ in curves[name]], 0) for name in ORDERS],
            "tvd": [np.mean([moved for _, moved in curves[name]], 0) for name in ORDERS],
            "fraction_to_flip": [_first(np.hstack([flips for flips, _ in curves[name]]), shares) for name in ORDERS],
        }

    coordinates = {"order": list(ORDERS), "fraction": shares}
    return over_heads(given, "erasure_test", _VARIABLES, lambda _, __: of_head, coordinates, **chosen)


def _curve(
    text: ReadText,
    layer: int,
    head: int,
    weights: Float[np.ndarray, "query key"],
    importance: Float[np.ndarray, "query key"],
    fractions: Sequence[float],
) -> tuple[Float[np.ndarray, "fraction prediction"], Float[np.ndarray, " fraction"]]:
    """Which predictions have flipped at each fraction or before, and how far all moved."""
    allowed = text.visible(layer, head)
    several = np.stack([erased_weights(weights, importance, share, allowed) for share in fractions])
    effects = text.effects(layer, head, text.of_weights(layer, head, several))
    return np.maximum.accumulate(effects["flipped"], 0), effects["tvd"].mean(1)


def _first(flips: Float[np.ndarray, "fraction prediction"], fractions: Sequence[float]) -> float:
    """Mean over predictions that flip of the fraction at which they do."""
    which = flips.any(0)
    return float(np.array(fractions)[flips[:, which].argmax(0)].mean()) if which.any() else np.nan


_SAME_OUTPUT_VARIABLES = {
    "weights_tvd": ("Distance of other weights with the same output, mean over rows", "share"),
    "weights_jsd": ("Divergence of other weights with the same output, mean over rows", "nats"),
    "top_before": ("Largest weight of a row, mean over rows", "share"),
    "top_after": ("Weight of that token afterwards, mean over rows", "share"),
    "free": ("Rows of which other weights with the same output were found", "share"),
    "output_error": ("Largest change of the output, of its largest value", "share"),
    "weights_tvd_null": ("The distance for weights in random order", "share"),
    "free_null": ("Rows of which other weights were found, for weights in random order", "share"),
}


@validated
def same_output_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    objective: Objective | str = "top_weight",
    rows: Count = 16,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    """Find other weights of each head whose output is exactly the same: what they say of importance is then not
    unique.
    """
    given, chosen = prepared(model, texts, options)

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        weights, allowed = text.weights(layer, head), text.visible(layer, head)
        values = text.values(layer, head).double().cpu().numpy()
        which = np.unique(np.linspace(0, len(weights) - 1, min(rows, len(weights))).round().astype(int))
        own, seen = weights[which], allowed[which]
        random = permuted_weights(own, generator, seen)
        own_search, null = (
            adversarial_weights(matrix, values, objective=objective, allowed=seen, seed=chosen.get("seed", 0))
            for matrix in (own, random)
        )
        return {
            "weights_tvd": float(own_search.tvd.mean()),
            "weights_jsd": float(own_search.jsd.mean()),
            "top_before": float(own_search.top_before.mean()),
            "top_after": float(own_search.top_after.mean()),
            "free": float(own_search.is_free.mean()),
            "output_error": float(own_search.output_error.max()),
            "weights_tvd_null": float(null.tvd.mean()),
            "free_null": float(null.is_free.mean()),
        }

    variables = _SAME_OUTPUT_VARIABLES
    found = over_heads(given, "same_output_test", variables, lambda _, __: of_head, predicts=False, **chosen)
    return found.assign_attrs(objective=objective)
