from ._changes import Changes, changes_by_document
from ._contrasts import contrast_rows, contrasts, contrasts_said, field_of
from ._diff import diff, load_difference
from ._matching import Matched, match_heads
from ._said import Change, changes_of, headline, partner_heading, same_everywhere, same_heads, value_headings
from ._sizes import sizes

__all__ = [
    "Change",
    "Changes",
    "Matched",
    "changes_by_document",
    "changes_of",
    "contrast_rows",
    "contrasts",
    "contrasts_said",
    "diff",
    "field_of",
    "headline",
    "load_difference",
    "match_heads",
    "partner_heading",
    "same_everywhere",
    "same_heads",
    "sizes",
    "value_headings",
]
