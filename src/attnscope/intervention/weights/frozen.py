"""The weights of another text in the place of a head's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.intervention.arrays.changes import uniform_weights
from attnscope.intervention.given import InterventionInput
from attnscope.intervention.passes.questions import MASKED
from attnscope.intervention.weights.over_heads import TestOptions, over_heads, prepared
from attnscope.intervention.weights.read_text import ReadText
from attnscope.intervention.weights.replaced import EFFECTS, replaced
from attnscope.support.arguments import Draws, validated

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@validated
def frozen_test(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    draws: Draws = 20,
    **options: Unpack[TestOptions],
) -> xr.Dataset:
    """Give a head the weights that it has on another text, and see how far predictions move."""
    given, chosen = prepared(model, texts, options)
    lengths = [(len(window), len(getattr(window, "target", None) or window)) for window in given.windows]
    documents = given.documents

    def donor_of(number: int) -> int | None:
        others = [(number + step) % len(lengths) for step in range(1, len(lengths))]
        fits = (
            other
            for other in others
            if documents[other] != documents[number]
            and all(long >= own for long, own in zip(lengths[other], lengths[number], strict=True))
        )
        return next(fits, None)

    def of_text(_: ReadText, number: int) -> Callable[..., dict[str, float]] | None:
        donor = donor_of(number)
        if donor is None:
            return None
        other = ReadText(given.model, given.windows[donor], donor, given.mask_id, masked=chosen.get("masked", MASKED))

        def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
            weights = text.weights(layer, head)
            frozen = cut_weights(weights, other.weights(layer, head), text.visible(layer, head))
            return replaced(text, layer, head, weights, frozen[None], generator, draws)

        return of_head

    return over_heads(given, "frozen_test", EFFECTS, of_text, **chosen)


def cut_weights(
    weights: Float[np.ndarray, "query key"], other: Float[np.ndarray, "other_query other_key"], allowed: np.ndarray
) -> Float[np.ndarray, "query key"]:
    """Weights of a longer text at the places of this one, with the sums that its rows have."""
    queries, keys = weights.shape
    part = np.where(allowed, other[:queries, :keys], 0.0)
    total = part.sum(1, keepdims=True)
    equal = uniform_weights(weights, allowed)  # where the longer text looks beyond the shorter
    return np.where(total > 0, part / np.where(total > 0, total, 1) * weights.sum(1, keepdims=True), equal)
