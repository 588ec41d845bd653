"""The weights of another text in the place of a head's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.intervention.arrays.changes import uniform_weights
from attnscope.intervention.given import Given, given_texts
from attnscope.intervention.passes.questions import MASKED
from attnscope.intervention.weights.over_heads import Head, TestPlan, over_heads
from attnscope.intervention.weights.read_text import ReadText
from attnscope.intervention.weights.replaced import EFFECTS, replaced
from attnscope.support.arguments import typed
from attnscope.support.checks import DRAWS, check_whole

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources
    from attnscope.support.progress import Tell


@typed
def frozen_test(
    model: Model | Study | Given | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    by_line: bool = False,
    heads: Sequence[Head] | None = None,
    draws: int = 20,
    masked: float = MASKED,
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Give a head the weights that it has on another text, and see how far predictions move.

    Weights that do as well on a text that they know nothing of depend on position, not on what the text says. The other
    text is the next one of another document that has at least as many tokens, cut to the same places; its rows are
    renormalised over what the head may see. Where there is none, the text is left out: NaN.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit, by_line, heads, masked, seed, progress
        See `permutation_test`.
    draws
        Random changes of the same size, whose median is the null.

    Returns
    -------
    xarray.Dataset
        ``tvd``, ``jsd``, ``flipped``, ``tvd_null`` and ``weights_tvd`` as in `permutation_test`.

    Raises
    ------
    AttnscopeError
        See `permutation_test`.

    References
    ----------
    Wiegreffe and Pinter (2019), section 3.4, freeze weights in a model that is trained with them; here they are of the
    same model on another text.

    Examples
    --------
    >>> texts = ["The tide comes in twice a day.", "A boat lies on the mud by day."]
    >>> test = frozen_test("bundled", texts, heads=[(0, 3), (2, 0)], draws=2)
    >>> own, other = test.weights_tvd.isel(text=0).stack(at=("layer", "head")).dropna("at").values
    >>> bool(own < 0.2 < other)  # the first looks at the previous token in every text
    True
    """
    check_whole(1, DRAWS, draws=draws)
    given = given_texts(
        model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit, by_line=by_line
    )
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
        other = ReadText(given.model, given.windows[donor], donor, given.mask_id, masked=masked)

        def of_head(
            text: ReadText, layer: int, head: int, generator: np.random.Generator
        ) -> dict[str, float]:
            weights = text.weights(layer, head)
            frozen = cut_weights(weights, other.weights(layer, head), text.visible(layer, head))
            return replaced(text, layer, head, weights, frozen[None], generator, draws)

        return of_head

    plan = TestPlan("frozen_test", EFFECTS, heads=heads, seed=seed, masked=masked, progress=progress)
    return over_heads(given, plan, of_text)


def cut_weights(
    weights: Float[np.ndarray, "query key"],
    other: Float[np.ndarray, "other_query other_key"],
    allowed: np.ndarray,
) -> Float[np.ndarray, "query key"]:
    """Weights of a longer text at the places of this one, with the sums that its rows have.

    Examples
    --------
    >>> cut_weights(np.array([[1.0]]), np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([[True]])).tolist()
    [[1.0]]
    """
    queries, keys = weights.shape
    part = np.where(allowed, other[:queries, :keys], 0.0)
    total = part.sum(1, keepdims=True)
    equal = uniform_weights(weights, allowed)  # where the longer text looks beyond the shorter
    return np.where(total > 0, part / np.where(total > 0, total, 1) * weights.sum(1, keepdims=True), equal)
