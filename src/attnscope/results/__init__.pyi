from ._description import Description, Variable, describe, settings_of
from ._export import Format, export
from ._headline import headline_of
from ._merge import Merged, merge
from ._open_run import open_run
from ._run_list import Run, run_at, runs

__all__ = [
    "Description",
    "Format",
    "Merged",
    "Run",
    "Variable",
    "describe",
    "export",
    "headline_of",
    "merge",
    "open_run",
    "run_at",
    "runs",
    "settings_of",
]
