"""Other weights of a model's heads that give the same output: by linear programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope.checks import check_whole
from attnscope.faithfulness._given import Given, given_texts
from attnscope.faithfulness.arrays import Objective, adversarial_weights, permuted_weights
from attnscope.faithfulness.weights._over_heads import Head, TestPlan, over_heads
from attnscope.faithfulness.weights._read_text import ReadText

if TYPE_CHECKING:
    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism import Study
    from attnscope.progress import Tell

_VARIABLES = {
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

    A linear program a row (`attnscope.faithfulness.arrays.adversarial_weights`); nothing that the model computes
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
        See `permutation_test` and `attnscope.faithfulness.arrays.adversarial_weights`.

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

    plan = TestPlan("same_output_test", _VARIABLES, heads=heads, seed=seed, predicts=False, progress=progress)
    return over_heads(given, plan, lambda _, __: of_head).assign_attrs(objective=objective)
