"""One head of a model over one sentence, step by step: `walk` computes, `markdown` and `terminal` show."""

from attnscope.walkthrough._markdown import markdown
from attnscope.walkthrough._result import Walk, entropy
from attnscope.walkthrough._steps import Step, steps
from attnscope.walkthrough._tables import Table
from attnscope.walkthrough._terminal import terminal
from attnscope.walkthrough._toy import walk_toy
from attnscope.walkthrough._walk import walk, walk_inputs

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
