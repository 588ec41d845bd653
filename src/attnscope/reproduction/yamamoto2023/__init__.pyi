from ._analyses import ANALYSES, LONGEST, analyses
from ._drawing import (
    correlations_of_heads,
    left_out,
    maps_of_heads,
    phases_as_published,
    phases_completed_minimally,
    score_maps,
    waves_of_head,
)
from ._drawing_relearned import relearned_maps, relearned_profiles, relearned_table
from ._models import GPT2, ROBERTA, SHAPES, check_published, is_shaped_like, published_name
from ._relearn import Relearning, relearn_positions
from ._relearned_analysis import relearned
from ._rows import ROWS, Row
from ._subject import PAPER_LENGTH, Subject
from ._table import COLUMNS, KEY, paper_lines, paper_table, table_of

__all__ = [
    "ANALYSES",
    "COLUMNS",
    "GPT2",
    "KEY",
    "LONGEST",
    "PAPER_LENGTH",
    "ROBERTA",
    "ROWS",
    "SHAPES",
    "Relearning",
    "Row",
    "Subject",
    "analyses",
    "check_published",
    "correlations_of_heads",
    "is_shaped_like",
    "left_out",
    "maps_of_heads",
    "paper_lines",
    "paper_table",
    "phases_as_published",
    "phases_completed_minimally",
    "published_name",
    "relearn_positions",
    "relearned",
    "relearned_maps",
    "relearned_profiles",
    "relearned_table",
    "score_maps",
    "table_of",
    "waves_of_head",
]
