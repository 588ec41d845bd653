"""Where a scan stands between two batches, so that another process can go on from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.corpus import Place


@dataclass(frozen=True)
class Standing:
    """What a scan has counted of all before a batch or a pool, and where that begins.

    Attributes
    ----------
    parts
        How many batches or pools come before.
    place
        Where its first window begins.
    share
        Part of all characters that came before.
    tokens, unknown
        How many came before, and how many of them the tokenizer does not know.
    doubled, packed
        Windows before with a special token twice at an end, and with several documents.
    """

    parts: int
    place: Place
    share: float
    tokens: int
    unknown: int
    doubled: int = 0
    packed: int = 0
