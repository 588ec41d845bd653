"""Rows of weights and scores, and their means along offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attention import AttentionCall, Need, measure

if TYPE_CHECKING:
    from collections.abc import Sequence


def pairs_at(queries: int, keys: int, band: int) -> Float[np.ndarray, " offset"]:
    """How many query-key pairs there are at each offset from ``-band`` to ``band``.

    Parameters
    ----------
    queries, keys
        Number of queries and of keys, tokens.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> pairs_at(4, 4, 2)
    array([2., 3., 4., 3., 2.])
    """
    return np.array(
        [len(_with_offset(queries, keys, offset)) for offset in range(-band, band + 1)], np.float64
    )


def _with_offset(queries: int, keys: int, offset: int) -> range:
    """The queries that have a key at an offset."""
    first = max(0, -offset)
    return range(first, max(first, min(queries, keys - offset)))


def mean_profile(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """Mean weight at each offset, over the rows that have one; float64 on the CPU, NaN where no row has one.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> mean_profile(AttentionCall(x, x, x, scale=1.0, causal=True), 1).tolist()
    [[[0.5, 0.75, 0.0]]]
    """
    return profile_and_output(call, band)[0]


def profile_and_output(
    call: AttentionCall, band: int
) -> tuple[Float[Tensor, "batch head offset"], Float[Tensor, "batch head query width"]]:
    """Give the mean weight at each offset (float64, on the CPU) and the output of a call, as `measure` does.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> profile, output = profile_and_output(AttentionCall(x, x, x, scale=1.0, causal=True), 1)
    >>> profile.tolist(), output.shape
    ([[[0.5, 0.75, 0.0]]], torch.Size([1, 1, 2, 4]))
    """
    output, rows = measure(call, Need(band=band))
    assert rows.band is not None  # noqa: S101 asked for
    pairs = torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band))
    summed = rows.band.double().sum(2).cpu()
    return torch.where(pairs > 0, summed / pairs.clamp_min(1), torch.nan), output


def centred_keys(call: AttentionCall, keys: Sequence[Tensor]) -> list[Tensor]:
    """Keys ``(..., key, width)`` about their mean over the text, where softmax cannot tell.

    That shifts a row of scores by a constant. A soft cap or a learned sink is not blind to it: there the keys stay.

    Parameters
    ----------
    call
        Arguments of the attention call.
    keys
        Keys, or parts of keys, ``(..., key, width)``.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 1)
    >>> centred_keys(AttentionCall(x, x, x, scale=1.0), [torch.tensor([[1.0], [3.0]])])[0].tolist()
    [[-1.0], [1.0]]
    """
    if call.softcap is not None or call.sinks is not None:
        return list(keys)
    return [key - key.mean(-2, keepdim=True) for key in keys]


def one_text(call: AttentionCall, text: int) -> AttentionCall:
    """The call of one text of the batch.

    Parameters
    ----------
    call
        Arguments of the attention call.
    text
        Number of the text in the batch, from 0.

    Examples
    --------
    >>> x = torch.zeros(3, 1, 2, 4)
    >>> one_text(AttentionCall(x, x, x, scale=1.0), 2).query.shape
    torch.Size([1, 1, 2, 4])
    """
    own = slice(text, text + 1)
    return replace(
        call,
        query=call.query[own],
        key=call.key[own],
        value=call.value[own],
        mask=call.mask if call.mask is None or len(call.mask) == 1 else call.mask[own],
        bias=call.bias if call.bias is None or len(call.bias) == 1 else call.bias[own],
    )


def offsets_seen(call: AttentionCall, band: int) -> Bool[np.ndarray, " offset"]:
    """Offsets from ``-band`` to ``band`` at which some query of some text may look, as masks and causality have it.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 4, 2)
    >>> offsets_seen(AttentionCall(x, x, x, scale=1.0, causal=True), 2)
    array([ True,  True,  True, False, False])
    """
    start, stop = (bound.cpu() for bound in call.extent)
    first, last = (bound - torch.arange(call.query.shape[2]) for bound in (start, stop))
    offsets = torch.arange(-band, band + 1)[:, None, None]
    return ((first <= offsets) & (offsets < last)).any(-1).any(-1).numpy()


def bias_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of what is added to the scores, 0 where nothing is; float64 on the CPU.

    A pair that the bias forbids counts as the mean of the others at its offset; NaN where it forbids all.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> call = AttentionCall(x, x, x, scale=1.0, bias=torch.tensor([[[[0.0, 1, 2], [3, 4, 5], [6, 7, -torch.inf]]]]))
    >>> bias_traces(call, 1).tolist()
    [[[10.0, 6.0, 6.0]]]
    """
    batch, heads = call.query.shape[:2]
    if call.bias is None:
        return torch.zeros(batch, heads, 2 * band + 1, dtype=torch.float64)
    lowest = torch.finfo(call.bias.dtype).min / 2
    traces: list[Tensor] = []
    for t in range(-band, band + 1):
        values = call.bias.diagonal(t, -2, -1)
        allowed = values > lowest
        total = torch.where(allowed, values.double(), 0.0).sum(-1)
        # a sum over all pairs, as if the forbidden ones had the mean of the others, so that a mask bends no trace;
        # 0 / 0 where all is forbidden, or there is no pair
        traces.append(total * values.shape[-1] / allowed.sum(-1))
    stacked = torch.stack(traces, -1).cpu().expand(batch, heads, -1)
    pairs = torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band))
    return torch.where(pairs > 0, stacked, 0.0)


def score_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of the scores of a call (scale included, keys about their mean), without the matrix of scores.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.eye(2).view(1, 1, 2, 2)
    >>> score_traces(AttentionCall(x, x, x, scale=1.0), 1).tolist()
    [[[-0.5, 1.0, -0.5]]]
    """
    query = call.query.double()
    key = call.key.double().repeat_interleave(call.group, 1)
    key = call.scale * centred_keys(call, [key])[0]
    queries, keys = query.shape[2], key.shape[2]
    traces: list[Tensor] = []
    for t in range(-band, band + 1):
        pairs = _with_offset(queries, keys, t)
        of_keys = key[:, :, pairs.start + t : pairs.stop + t]
        traces.append((query[:, :, pairs.start : pairs.stop] * of_keys).sum((-1, -2)))
    return torch.stack(traces, -1)
