"""How many weights can be erased before a decision falls, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope._arguments import typed
from attnscope.checks import DRAWS, check_real, check_whole
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._given import Given, given_texts
from attnscope.faithfulness.arrays import erased_weights
from attnscope.faithfulness.passes import MASKED
from attnscope.faithfulness.weights._over_heads import Head, TestPlan, over_heads
from attnscope.faithfulness.weights._read_text import ReadText

if TYPE_CHECKING:
    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism import Study
    from attnscope.progress import Tell

ORDERS = ("attention", "gradient", "product", "random")
FRACTIONS = tuple(np.linspace(0.1, 1.0, 10).round(3).tolist())
_VARIABLES = {
    "flipped": ("Predictions that flipped at this fraction or before", "share", "order", "fraction"),
    "tvd": ("Total variation distance of the predictions", "share", "order", "fraction"),
    "fraction_to_flip": ("Fraction at which a prediction flips, mean over those that do", "share", "order"),
}


@typed
def erasure_test(
    model: Model | Study | Given | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    by_line: bool = False,
    heads: Sequence[Head] | None = None,
    fractions: Sequence[float] = FRACTIONS,
    draws: int = 5,
    masked: float = MASKED,
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Erase a head's weights, the most important first, until decisions flip.

    In every row that fraction of the keys that it may see loses its weight, and the others share it. The order is by
    attention, by the gradient of the decisions' log probabilities (their sum) by the weight, by the product of both,
    and at random, which is the null: an order that says what matters flips decisions sooner.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit, by_line, heads, masked, seed, progress
        See `permutation_test`.
    fractions
        Shares of the keys of each row, rising; rounded up to whole keys. At 1 the head gives nothing.
    draws
        Random orders, whose mean is taken.

    Returns
    -------
    xarray.Dataset
        Dimensions ``text, layer, head, order, fraction``: ``flipped``, the share of predictions whose likeliest
        outcome was another at this fraction or a smaller one; ``tvd`` (share); ``fraction_to_flip`` (no ``fraction``),
        NaN where none flips. Means over texts and intervals as in `permutation_test`.

    Raises
    ------
    AttnscopeError
        If fractions do not rise or are not between 0 and 1; see `permutation_test`.

    References
    ----------
    Serrano and Smith (2019), Is Attention Interpretable?, ACL 2019, section 4; there the one attention layer of a
    classifier, here one head of many.

    Examples
    --------
    >>> test = erasure_test("bundled", limit=1, heads=[(0, 3)], fractions=[0.5, 1.0], draws=1)
    >>> test.flipped.dims, test.order.values.tolist()
    (('text', 'layer', 'head', 'order', 'fraction'), ['attention', 'gradient', 'product', 'random'])
    """
    check_whole(1, DRAWS, draws=draws)
    shares = [float(share) for share in fractions]
    for share in shares:
        check_real(0.0, 1.0, fractions=share)
    if not shares or sorted(set(shares)) != shares:
        raise AttnscopeError(
            f"fractions are {shares[:5]}; expected numbers that rise, such as 0.1, 0.2, 0.5, 1.0"
        )
    given = given_texts(
        model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit, by_line=by_line
    )

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, Any]:
        weights, slope = text.weights(layer, head), text.by_weights(layer, head)
        known = {"attention": weights, "gradient": slope, "product": weights * slope}
        curves = {name: [_curve(text, layer, head, weights, by, shares)] for name, by in known.items()}
        random = [generator.random(weights.shape) for _ in range(draws)]
        curves["random"] = [_curve(text, layer, head, weights, by, shares) for by in random]
        return {
            "flipped": [np.mean([flips.mean(1) for flips, _ in curves[name]], 0) for name in ORDERS],
            "tvd": [np.mean([moved for _, moved in curves[name]], 0) for name in ORDERS],
            "fraction_to_flip": [
                _first(np.hstack([flips for flips, _ in curves[name]]), shares) for name in ORDERS
            ],
        }

    plan = TestPlan(
        "erasure_test",
        _VARIABLES,
        {"order": list(ORDERS), "fraction": shares},
        heads=heads,
        seed=seed,
        masked=masked,
        progress=progress,
    )
    return over_heads(given, plan, lambda _, __: of_head)


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
