"""`attnscope.measure_weights`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from attnscope.options import Mask, Weights
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb()
def measure_weights(
    weights: Annotated[
        Weights | Sequence[Weights] | Sequence[Sequence[Weights]] | Mapping[str, Weights],
        "Measure these weights. A tuple or list over layers of ``(batch, head, query, key)``, torch or NumPy, as "
        "returned with ``output_attentions=True`` and used by BertViz; numbers of heads may differ. Or one array, "
        "layers first. Rows sum to 1; if they sum to less, the rest counts as weight on no token (a learned sink). "
        "A tuple over steps of a tuple over layers, from ``generate(output_attentions=True)`` without beams, "
        "counts as one pass over the whole text. A single query with several keys is the last token. Or the "
        "activation cache of TransformerLens, or any mapping with its names (``blocks.3.attn.hook_pattern``) for "
        "every layer.",
    ],
    *,
    statistics: Annotated[Sequence[str] | str | None, "Measure these statistics: see `attnscope.scan`."] = None,
    tokens: Annotated[
        Sequence[Sequence[str]] | None,
        "Name the tokens of each text, as strings. They set `lengths` and ``token (text, position)`` of the result.",
    ] = None,
    lengths: Annotated[
        Sequence[int] | None,
        "Count this many tokens of each text as real, without padding on the right. By default all.",
    ] = None,
    mask: Annotated[
        Mask | None,
        "Count tokens by this mask, instead of `lengths`: Instead of `lengths`: ``(text, position)``, 1 on real "
        "tokens and 0 on padding, like ``attention_mask``; padding may be on either side. For steps of "
        "``generate``, that of the prompts.",
    ] = None,
    special: Annotated[
        Sequence[Sequence[bool]] | None, "Count these tokens of each text as special. By default none."
    ] = None,
    causal: Annotated[
        bool | None,
        "Assume that queries attend to no later key, or that they do. By default inferred for each layer. With "
        "``True``, fewer queries than keys are the last tokens. Otherwise a layer with different numbers of "
        "queries and keys is ``cross``, except that a single query counts as the last token by default.",
    ] = None,
    band: Annotated[
        int, "Measure profiles up to this offset. Instead of ``offsets``, use a wider band or ``offset_sum``."
    ] = 10,
) -> "xr.Dataset":
    """Measure attention weights that you have, as `attnscope.scan` measures a model's.

    Returns
    -------
    xarray.Dataset
        In the form of `attnscope.scan`. Uniform attention covers the keys with weight from any head of the layer.

    Raises
    ------
    AttnscopeError
        If shapes do not match, a weight is negative or not finite, a row sums to more than 1, weight is on padding or
        (with `causal`) to the right, or texts seem to be padded on the left without a `mask`.

    Examples
    --------
    >>> import torch
    >>> previous = torch.eye(6)[[0, 0, 1, 2, 3, 4]]  # each token attends to the one before
    >>> statistics = measure_weights([previous.expand(1, 2, 6, 6)], band=2)
    >>> statistics.profile.sel(offset=-1).values.tolist(), statistics.layer_kind.item()
    ([[[1.0, 1.0]]], 'causal')
    """
    from itertools import zip_longest

    import numpy as np

    from attnscope.measure.quantities import choose
    from attnscope.measure.reader import BAND
    from attnscope.measure.watched import (
        are_steps,
        check_alike,
        layers_of,
        measured_weights,
        real_tokens,
        reject_left_padding,
        special_tokens,
    )
    from attnscope.support.checks import check_whole

    names, layers = choose(statistics), layers_of(weights, causal=causal)
    longest = max(max(layer.weights.shape[2:]) for layer in layers)
    check_whole(1, max(BAND, longest - 1), band=band)
    texts = layers[0].weights.shape[0]
    is_real = real_tokens(mask, lengths, tokens, texts, longest, more=are_steps(weights))
    is_special = special_tokens(special, is_real)
    check_alike(layers, whole=mask is not None)
    if mask is None and lengths is None and tokens is None:
        reject_left_padding(layers)
    results = measured_weights(layers, names, is_real, is_special, causal=causal, band=band)
    if tokens is None:
        return results
    padded = np.array([*zip_longest(*tokens, fillvalue="")], dtype=object).T
    return results.assign_coords(token=(("window", "position"), padded))
