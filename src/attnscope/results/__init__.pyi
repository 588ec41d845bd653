from ._account import (
    Account,
    account_of,
    apart_said,
    differences_note,
    full_pass_said,
    read_said,
    sentences_cut_said,
)
from ._description import Description, Variable, describe, settings_of
from ._export import Format, export
from ._headline import explanation_notes, headline_of
from ._merge import Merged, merge
from ._open_run import open_run
from ._run_list import Run, run_at, runs

__all__ = [
    "Account",
    "Description",
    "Format",
    "Merged",
    "Run",
    "Variable",
    "account_of",
    "apart_said",
    "describe",
    "differences_note",
    "explanation_notes",
    "export",
    "full_pass_said",
    "headline_of",
    "merge",
    "open_run",
    "read_said",
    "run_at",
    "runs",
    "sentences_cut_said",
    "settings_of",
]
