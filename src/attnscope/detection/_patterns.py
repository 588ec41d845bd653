"""The patterns of TransformerLens' ``head_detector`` on any tokens, without the matrix of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from attnscope._arguments import typed
from attnscope.attention import Need, measure, output_of, weights_at
from attnscope.capture import (
    borrowing,
    device_of,
    forward,
    layer_coordinates,
    load_model,
    verify,
    watching,
)
from attnscope.checks import shortly
from attnscope.errors import AttnscopeError
from attnscope.store import padded_heads

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Model, Site

PATTERNS = ("previous_token_head", "duplicate_token_head", "induction_head")


@typed
@borrowing
@torch.no_grad()
def pattern_scores(
    model: Model,
    ids: Sequence[int],
    pattern: str,
    *,
    exclude_bos: bool = False,
    exclude_current_token: bool = False,
) -> xr.DataArray:
    r"""Share of each head's weight on the pairs of a pattern, as TransformerLens' ``detect_head`` gives it (``"mul"``).

    The sum of the weights on the pairs, divided by the sum of all weights. On P different tokens said twice, of n in
    all, `roles` takes the mean over the second occurrences alone: its score is n / P times this one.

    Parameters
    ----------
    model
        See `attnscope.scan`.
    ids
        Token ids of one text.
    pattern
        ``previous_token_head``: the token before. ``duplicate_token_head``: earlier tokens that are the same.
        ``induction_head``: the tokens after these.
    exclude_bos, exclude_current_token
        Leave the weights on the first token, or on the token itself, out of both sums.

    Returns
    -------
    xarray.DataArray
        ``(layer, head)``; NaN for cross-attention.

    Raises
    ------
    AttnscopeError
        If there is no such pattern.

    Examples
    --------
    >>> scores = pattern_scores("bundled", [1, 40, 50, 60, 40, 50, 60, 2], "previous_token_head")
    >>> scores.dims, round(float(scores[0, 3]), 2)
    (('layer', 'head'), 0.75)
    """
    if pattern not in PATTERNS:
        raise AttnscopeError(f"there is no pattern {shortly(pattern)}: choose from {', '.join(PATTERNS)}")
    own = load_model(model, need_tokenizer=False)
    device = device_of(own.model)
    given = torch.tensor([list(ids)], device=device)
    inputs = {"input_ids": given}
    if own.model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = given
    sites, _ = verify(own.model, inputs, weights_suffice=True)
    keys = pattern_keys(given[0], pattern)
    layers: dict[int, np.ndarray] = {}
    heads: dict[int, int] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        heads[site.index] = call.query.shape[1]
        if site.kind == "cross":
            return output_of(call)
        output, rows = measure(call, Need())
        score = _share(call, rows.log_sum_exp, rows.mass, keys, exclude_bos, exclude_current_token)
        layers[site.index] = score[0].cpu().numpy()
        return output

    with watching(own.model, observe, weights_suffice=True):
        forward(own.model, inputs, lambda _: "the text", with_head=False)
    scores = padded_heads([layers.get(site.index, np.full(heads[site.index], np.nan)) for site in sites])
    return xr.DataArray(
        scores,
        dims=("layer", "head"),
        coords={**layer_coordinates(sites), "head": np.arange(scores.shape[1])},
        name=pattern,
        attrs={"long_name": pattern.replace("_", " "), "units": "share"},
    )


def _share(
    call: AttentionCall,
    log_sum_exp: Tensor,
    mass: Tensor,
    keys: Tensor,
    exclude_bos: bool,
    exclude_current: bool,
) -> Tensor:
    place = torch.arange(len(keys), device=keys.device)[:, None]
    excluded = torch.zeros_like(keys, dtype=torch.bool)
    beside: list[Tensor] = []  # what is left out of the sum of all weights, no pair twice
    if exclude_bos:
        excluded |= keys == 0
        beside.append(torch.zeros_like(place))
    if exclude_current:
        excluded |= keys == place
        beside.append(torch.where((place == 0) & exclude_bos, -1, place))

    def total(keys: Tensor) -> Tensor:
        return weights_at(call, log_sum_exp, keys[None]).double().sum((2, 3))

    others = total(torch.cat(beside, -1)) if beside else 0.0
    return total(keys.masked_fill(excluded, -1)) / (mass.sum(-1) - others)


def pattern_keys(ids: Int[Tensor, " token"], pattern: str) -> Int[Tensor, "token most"]:
    """Keys of each query in a pattern; -1 fills up.

    Examples
    --------
    >>> pattern_keys(torch.tensor([7, 8, 7, 7]), "duplicate_token_head").tolist()
    [[-1, -1], [-1, -1], [-1, 0], [0, 2]]
    >>> pattern_keys(torch.tensor([7, 8, 7, 7]), "induction_head").tolist()
    [[-1, -1], [-1, -1], [-1, 1], [1, 3]]
    """
    if pattern == "previous_token_head":
        return torch.arange(-1, len(ids) - 1, device=ids.device)[:, None]
    seen: dict[int, list[int]] = {}
    rows: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        earlier = seen.setdefault(token, [])
        rows.append([key + (pattern == "induction_head") for key in earlier])
        earlier.append(place)
    most = max(1, *map(len, rows))
    return torch.tensor([[-1] * (most - len(row)) + row for row in rows], device=ids.device)
