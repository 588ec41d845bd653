from ._markdown import markdown
from ._result import Walk, entropy
from ._steps import Step, steps
from ._tables import Table
from ._terminal import terminal
from ._toy import walk_toy
from ._walk import walk, walk_inputs

__all__ = [
    "Step",
    "Table",
    "Walk",
    "entropy",
    "markdown",
    "steps",
    "terminal",
    "walk",
    "walk_inputs",
    "walk_toy",
]
