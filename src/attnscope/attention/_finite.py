"""NaN and infinity on the way into a pass: the rows that they reach become NaN, and no others change."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention._call import AttentionCall, Need, RowMeasures

if TYPE_CHECKING:
    from collections.abc import Callable

    Pass = Callable[[AttentionCall, Need], tuple[Tensor, RowMeasures]]

_ROWS = 512  # whose scores are written out at once, where there is something to look for


def magnitude(tensor: Tensor) -> Tensor:
    """Norm of all entries: finite only if every one is, and found in a tenth of the time of `isfinite`.

    Examples
    --------
    >>> magnitude(torch.tensor([3.0, 4.0])).item(), magnitude(torch.tensor([3.0, torch.nan])).item()
    (5.0, nan)
    """
    wide = torch.float32 if tensor.dtype == torch.float16 else None  # whose squares overflow
    return torch.linalg.vector_norm(tensor, dtype=wide)


def shows_scores(call: AttentionCall) -> bool:
    """Whether a score of -inf cannot be but a mistake: nothing else forbids a key, and no cap hides it."""
    return call.is_contiguous and call.bias is None and call.softcap is None


def told(
    run: Pass, call: AttentionCall, need: Need, *, shows_scores: bool = False, wide: Pass | None = None
) -> tuple[Tensor, RowMeasures]:
    """Run a pass so that a row is NaN if it may look at a number that is not finite, and else knows nothing of it.

    Parameters
    ----------
    run
        The pass. The output of a row whose largest score is NaN or +inf is NaN; a value that is NaN or infinite may
        spoil any output, as 0 times NaN is NaN.
    call, need
        Its arguments.
    shows_scores
        Whether a score of -inf, which leaves a weight of 0, makes the output NaN too.
    wide
        What to run in its place where finite queries and keys may give scores that are not, if `run` cannot.
    """
    safe = call.sinks is None or bool((call.sinks < torch.inf).all())
    if safe and (shows_scores or _has_finite_scores(call)):
        output, rows = run(call, need)
        if bool(magnitude(output if output.numel() else rows.mass) < torch.inf):  # values may have no width
            return output, rows
    return _repaired(run, call, need, wide)


def _has_finite_scores(call: AttentionCall) -> bool:
    """Whether no entry is NaN or infinite and, by Cauchy and Schwarz, no sum of products on the way to a score."""
    query, key = torch.stack([magnitude(call.query), magnitude(call.key)]).tolist()
    # twice: the sum of squared weights is a softmax of doubled scores
    largest = 2 * max(1.0, abs(call.scale)) * query * key
    return largest < torch.finfo(torch.promote_types(call.query.dtype, torch.float32)).max


def _repaired(run: Pass, call: AttentionCall, need: Need, wide: Pass | None) -> tuple[Tensor, RowMeasures]:
    """Let the pass see finite numbers alone, and find the rows that others reach by their scores, written out."""
    finite = _only_finite(call)
    if wide is not None and not _has_finite_scores(finite):
        run = wide
    output, rows = run(finite, need)
    of_scores, of_values = _reached(call)
    strange = of_scores | ~(rows.log_sum_exp < torch.inf)  # a bias or a sink shows there
    output.masked_fill_(of_values | strange[..., None], torch.nan)
    return output, _marked(rows, strange)


def _only_finite(call: AttentionCall) -> AttentionCall:
    sides = (call.query, call.key, call.value)
    query, key, value = (side.nan_to_num(0.0, posinf=0.0, neginf=0.0) for side in sides)
    return replace(call, query=query, key=key, value=value)


def _reached(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Rows that may look where a score is not finite, and entries of the output that mix such a value."""
    batch, heads, queries, _ = call.query.shape
    scores = torch.zeros(batch, heads, queries, dtype=torch.bool, device=call.query.device)
    values = scores.new_zeros(batch, heads, queries, call.value.shape[-1])
    strange = (~call.value.isfinite()).float()
    for text in range(batch):
        for head in range(heads):
            at = head // call.group
            for first in range(0, queries, _ROWS):
                rows = slice(first, first + _ROWS)
                allowed = call.allowed(text, head, rows)
                scores[text, head, rows] = (allowed & ~_finite_scores(call, text, head, rows)).any(-1)
                values[text, head, rows] = allowed.float() @ strange[text, at] > 0
    return scores, values


def _finite_scores(call: AttentionCall, text: int, head: int, rows: slice) -> Tensor:
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query, key = call.query[text, head, rows].to(wide), call.key[text, head // call.group].to(wide)
    return (query * call.scale @ key.T).isfinite()


def _marked(rows: RowMeasures, strange: Tensor) -> RowMeasures:
    measures = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return RowMeasures(
        **{
            name: value.masked_fill(strange.view(*strange.shape, *[1] * (value.ndim - 3)), torch.nan)
            for name, value in measures.items()
            if value is not None
        }
    )
