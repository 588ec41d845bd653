from ._drawing import SAME, left_out, paper_figures
from ._drawing_relearned import relearned_maps, relearned_profiles, relearned_table
from ._published import GPT2, PUBLISHED, ROBERTA, SHAPES, published_name
from ._relearn import Relearning, relearn_positions
from ._rows import PAPER_LENGTH, Case
from ._table import COLUMNS, KEY, check_published, paper_lines, paper_table, table_of

__all__ = [
    "COLUMNS",
    "GPT2",
    "KEY",
    "PAPER_LENGTH",
    "PUBLISHED",
    "ROBERTA",
    "SAME",
    "SHAPES",
    "Case",
    "Relearning",
    "check_published",
    "left_out",
    "paper_figures",
    "paper_lines",
    "paper_table",
    "published_name",
    "relearn_positions",
    "relearned_maps",
    "relearned_profiles",
    "relearned_table",
    "table_of",
]
