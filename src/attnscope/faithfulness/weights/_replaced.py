"""Other weights in the place of a head's: mixed up, or equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope._arguments import typed
from attnscope.checks import DRAWS, check_whole
from attnscope.faithfulness._given import Given, given_texts
from attnscope.faithfulness.arrays import permuted_weights, total_variation, uniform_weights
from attnscope.faithfulness.weights._over_heads import Head, TestPlan, over_heads
from attnscope.faithfulness.weights._read_text import MASKED, ReadText

if TYPE_CHECKING:
    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism import Study
    from attnscope.progress import Tell

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
        See `attnscope.scan`. A `attnscope.mechanism.Study` or a `Given` brings its texts.
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
