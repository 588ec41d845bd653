"""One request for all that some statistics need, and their numbers of the rows that it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention import Need, RowMeasures, far_starts
from attnscope.statistics._catalogue import BY_GROUP, KNOWN, by_group
from attnscope.statistics._rows import GroupMarks, Rows, SecondPass, first_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def plan(names: Sequence[str], band: int, columns: Tensor, reach: int = 0, *, equal: bool = False) -> Need:
    """Pack what the statistics need into one request for one pass.

    Parameters
    ----------
    names
        Statistics.
    band
        Largest offset.
    columns
        ``(batch, key, column)``: indicators of the first real key, of special tokens, and of groups if there are some.
    reach
        Largest offset that has a bin; what lies beyond is in the last one.
    equal
        Whether it is equal weights that will be measured.

    Examples
    --------
    >>> import torch
    >>> need = plan(["entropy", "outside"], 5, torch.zeros(1, 3, 2))
    >>> need.band, need.entropy, need.largest, need.columns
    (5, True, False, None)
    """
    wanted = {part for name in names for part in KNOWN[name].asks(equal=equal)}
    return Need(
        band=band if "band" in wanted else None,
        columns=columns if "columns" in wanted else None,
        entropy="entropy" in wanted,
        offsets="offsets" in wanted,
        variance="variance" in wanted,
        largest="largest" in wanted,
        largest_key="largest_key" in wanted,
        collision="collision" in wanted,
        bins=far_starts(band, reach) if "bins" in wanted else (),
    )


def reduce_call(
    rows: RowMeasures,
    names: Sequence[str],
    query_valid: Tensor,
    key_valid: Tensor,
    groups: GroupMarks | None = None,
    second: SecondPass | None = None,
    *,
    equal: bool = False,
) -> dict[str, Tensor]:
    """Statistics of one attention call: ``(batch, head)`` or with more dimensions, float64.

    Parameters
    ----------
    rows
        Measures of each row.
    names
        Names of statistics.
    query_valid, key_valid
        Masks of real tokens, ``(batch, query)`` and ``(batch, key)``.
    groups
        Groups of tokens: with them, statistics of one number a head are had by group of queries too.
    second
        Results of a second pass over the scores, where there was one.
    equal
        Whether the rows are those of equal weights.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import AttentionCall, measure
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> need = plan(["entropy"], 2, torch.zeros(1, 4, 2))
    >>> _, rows = measure(AttentionCall(x, x, x, scale=1.0), need)
    >>> everywhere = torch.ones(1, 4, dtype=torch.bool)
    >>> round(reduce_call(rows, ["entropy"], everywhere, everywhere)["entropy"].exp().item(), 5)
    4.0
    """
    counted = query_valid[:, None] & (rows.mass > 0)
    sizes = query_valid.sum(1), key_valid.sum(1)
    reduced = Rows(rows, counted, *sizes, first_of(key_valid), groups, second)
    reduced_to = {name: KNOWN[name].of(reduced, equal=equal) for name in names}
    if groups is None:
        return reduced_to
    members = [
        replace(reduced, counted=counted & (groups.queries == number)[:, None])
        for number in range(groups.count)
    ]
    return reduced_to | {
        f"{name}{BY_GROUP}": torch.stack([KNOWN[name].of(rows, equal=equal) for rows in members], -1)
        for name in by_group(names)
    }
