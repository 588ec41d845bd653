from ._cause import cause
from ._columns import HEADINGS, column_notes, known_columns, order_note, question
from ._sentences import (
    findings,
    foretold,
    headline,
    independence_note,
    layer_numbers,
    mask_note,
    peaks_of_noise,
    said_of,
    skipped_by_reason,
    summary,
)

__all__ = [
    "HEADINGS",
    "cause",
    "column_notes",
    "findings",
    "foretold",
    "headline",
    "independence_note",
    "known_columns",
    "layer_numbers",
    "mask_note",
    "order_note",
    "peaks_of_noise",
    "question",
    "said_of",
    "skipped_by_reason",
    "summary",
]
