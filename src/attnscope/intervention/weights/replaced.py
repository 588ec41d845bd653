"""Other weights in the place of a head's: mixed up, or equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.intervention.arrays.adversarial import Objective, adversarial_weights
from attnscope.intervention.arrays.changes import (
    erased_weights,
    permuted_weights,
    total_variation,
    uniform_weights,
)
from attnscope.intervention.given import Given, given_texts
from attnscope.intervention.passes.questions import MASKED
from attnscope.intervention.weights.over_heads import Head, TestPlan, over_heads
from attnscope.intervention.weights.read_text import ReadText
from attnscope.support.arguments import typed
from attnscope.support.checks import DRAWS, check_real, check_whole
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources
    from attnscope.support.progress import Tell

if TYPE_CHECKING:
    Weights = Float[np.ndarray, "query key"]

EFFECTS = {
    "tvd": ("Total variation distance of the predictions", "share"),
    "jsd": ("Jensen-Shannon divergence of the predictions", "nats"),
    "flipped": ("Predictions whose likeliest outcome is another", "share"),
    "tvd_null": (
        "Distance of the predictions by random changes of the head's output of the same size",
        "share",
    ),
    "weights_tvd": ("Total variation distance of the weights, mean over rows", "share"),
}


@typed
def permutation_test(
    model: Model | Study | Given | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    by_line: bool = False,
    heads: Sequence[Head] | None = None,
    draws: int = 100,
    masked: float = MASKED,
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Mix up each row of a head's weights, and see how far predictions move.

    Weights that are mixed up and change nothing do not explain the prediction, however sharp they are. A change of the
    head's output may matter by its size alone: beside the effect stands that of random changes of the same size, in
    each row the same length and a random direction.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, by_line
        See `attnscope.scan`. A `attnscope.explanation.study.Study` or a `Given` brings its texts.
    limit
        Windows to read, by default 8.
    heads
        ``(layer, head)`` each; by default all. Each costs two times `draws` forward passes a text.
    draws
        Permutations.
    masked
        Share of a text's tokens behind masks, for a masked language model: it predicts there. Others predict at each
        of their places.
    seed
        Seed of the random numbers.
    progress
        Called with a `Progress` after each head.

    Returns
    -------
    xarray.Dataset
        Dimensions ``text, layer, head``: ``tvd``, ``jsd`` and ``flipped``, median over permutations of the mean over
        predictions; ``tvd_null``, the same of random changes; ``weights_tvd``, and ``max_weight``, mean over rows of
        the largest weight. Beside each, ``..._mean`` over texts with ``..._low`` and ``..._high``, 95 % intervals of a
        bootstrap over documents (layer, head). NaN for heads that were not chosen.

    Raises
    ------
    AttnscopeError
        If the model predicts nothing, or a head does not exist.

    References
    ----------
    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.1.

    Examples
    --------
    >>> test = permutation_test("bundled", limit=1, heads=[(0, 3)], draws=4)
    >>> test.tvd.dims, bool(test.tvd.sel(layer=0, head=3).item() > 0)
    (('text', 'layer', 'head'), True)
    """
    check_whole(1, DRAWS, draws=draws)
    given = given_texts(
        model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit, by_line=by_line
    )

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        weights, allowed = text.weights(layer, head), text.visible(layer, head)
        several = np.stack([permuted_weights(weights, generator, allowed) for _ in range(draws)])
        numbers = replaced(text, layer, head, weights, several, generator)
        return numbers | {"max_weight": float(weights.max(1).mean())}

    variables = EFFECTS | {"max_weight": ("Largest weight of a row, mean over rows", "share")}
    plan = TestPlan("permutation_test", variables, heads=heads, seed=seed, masked=masked, progress=progress)
    return over_heads(given, plan, lambda _, __: of_head)


@typed
def uniform_test(
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
    """Give each row of a head equal weights over what it may see, and see how far predictions move.

    If equal weights do as well, the head's own carry nothing that this model needs there. (The baseline of the paper
    is trained with equal weights; here the model is as it is.)

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
    Wiegreffe and Pinter (2019), Attention is not not Explanation, EMNLP 2019, section 3.2.

    Examples
    --------
    >>> test = uniform_test("bundled", limit=1, heads=[(0, 3)], draws=2)
    >>> bool(test.weights_tvd.sel(layer=0, head=3).item() > 0.1)
    True
    """
    check_whole(1, DRAWS, draws=draws)
    given = given_texts(
        model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit, by_line=by_line
    )

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        weights = text.weights(layer, head)
        equal = uniform_weights(weights, text.visible(layer, head))
        return replaced(text, layer, head, weights, equal[None], generator, draws)

    plan = TestPlan("uniform_test", EFFECTS, heads=heads, seed=seed, masked=masked, progress=progress)
    return over_heads(given, plan, lambda _, __: of_head)


def replaced(
    text: ReadText,
    layer: int,
    head: int,
    weights: Weights,
    several: Float[np.ndarray, "variant query key"],
    generator: np.random.Generator,
    draws: int = 1,
) -> dict[str, float]:
    """What other weights do to the predictions, medians over the variants, and what random changes of their size do.

    Examples
    --------
    >>> text = ReadText((given := given_texts(texts="The tide is out.")).model, given.windows[0], 0, given.mask_id)
    >>> weights = text.weights(0, 1)
    >>> changes = replaced(text, 0, 1, weights, weights[None], np.random.default_rng(0))
    >>> bool(max(changes.values()) < 1e-5)
    True
    """
    outputs = text.of_weights(layer, head, several)
    effects = text.effects(layer, head, outputs)
    random = text.effects(layer, head, same_size(outputs, text.output(layer, head), generator, draws))
    medians = {name: float(np.median(values.mean(1))) for name, values in effects.items()}
    moved = [float(total_variation(weights, other).mean()) for other in several]
    return medians | {
        "tvd_null": float(np.median(random["tvd"].mean(1))),
        "weights_tvd": float(np.median(moved)),
    }


def same_size(
    outputs: Float[Tensor, "variant query value_width"],
    before: Float[Tensor, "query value_width"],
    generator: np.random.Generator,
    draws: int = 1,
) -> Float[Tensor, "changed query value_width"]:
    """Outputs that are as far from a head's own, row by row, in random directions: `draws` for each variant.

    Parameters
    ----------
    outputs
        Outputs of the head under changed weights.
    before
        The head's own output.
    generator
        Generator of the random directions.
    draws
        Number of directions for each variant.

    Examples
    --------
    >>> moved = same_size(torch.ones(1, 2, 3), torch.zeros(2, 3), np.random.default_rng(0))
    >>> bool(torch.allclose(moved.norm(dim=-1), torch.tensor(3.0) ** 0.5))
    True
    """
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


@typed
def same_output_test(
    model: Model | Study | Given | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    by_line: bool = False,
    heads: Sequence[Head] | None = None,
    objective: Objective | str = "top_weight",
    rows: int = 16,
    seed: int = 0,
    progress: Tell | None = None,
) -> xr.Dataset:
    """Find other weights of each head whose output is exactly the same: what they say of importance is then not unique.

    A linear program a row (`attnscope.intervention.arrays.adversarial.adversarial_weights`); nothing that the model computes
    changes. Beside it stands the same for the row's weights in random order, with the output that these give: how free
    weights are that know nothing of the text.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit, by_line, heads, seed, progress
        See `permutation_test`. The model needs no head that predicts.
    objective
        ``"top_weight"`` or ``"distance"``.
    rows
        Rows of each head at most, evenly spaced: two programs each. The matrices of a head are in memory, and a text
        has at most 2,048 tokens.

    Returns
    -------
    xarray.Dataset
        Dimensions ``text, layer, head``, means over rows: ``weights_tvd`` (share), ``weights_jsd`` (nats),
        ``top_before``, ``top_after``, ``free`` (share of rows), ``output_error``, ``weights_tvd_null`` and
        ``free_null``; means over texts and intervals as in `permutation_test`.

    Raises
    ------
    AttnscopeError
        See `permutation_test` and `attnscope.intervention.arrays.adversarial.adversarial_weights`.

    Examples
    --------
    >>> test = same_output_test("bundled", limit=1, window=64, heads=[(2, 0)], rows=2)
    >>> here = test.isel(text=0).sel(layer=2, head=0)
    >>> bool(here.top_after < here.top_before), bool(here.output_error < 1e-9), float(here.free)
    (True, True, 1.0)
    """
    check_whole(1, rows=rows)
    given = given_texts(
        model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit, by_line=by_line
    )

    def of_head(text: ReadText, layer: int, head: int, generator: np.random.Generator) -> dict[str, float]:
        weights, allowed = text.weights(layer, head), text.visible(layer, head)
        values = text.values(layer, head).double().cpu().numpy()
        chosen = np.unique(np.linspace(0, len(weights) - 1, min(rows, len(weights))).round().astype(int))
        own, seen = weights[chosen], allowed[chosen]
        random = permuted_weights(own, generator, seen)
        own_search, null = (
            adversarial_weights(matrix, values, objective=objective, allowed=seen, seed=seed)
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

    plan = TestPlan(
        "same_output_test", _SAME_OUTPUT_VARIABLES, heads=heads, seed=seed, predicts=False, progress=progress
    )
    return over_heads(given, plan, lambda _, __: of_head).assign_attrs(objective=objective)
