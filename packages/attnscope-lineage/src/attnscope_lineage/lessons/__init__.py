"""Lessons that compute in the page: a folder a lesson.

A folder has its prose (``en.html`` and ``ja.html``), its drawings (``lesson.js``), its numbers and exercises
(``numbers.py``), and the same in PyTorch (``code.py``), a cell a section. `write.py` makes the page and the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent

Answer = float | Sequence[Any] | str


class Exercise(NamedTuple):
    """An exercise: its right answer, and the answers that known mistakes lead to.

    An answer is a number, a vector, a matrix, or the name of a choice. The prose has a sentence for each mistake.
    """

    answer: Answer
    mistakes: Mapping[str, Answer]
    decimals: int = 2  # an answer is right if it differs by at most one unit of the last decimal


class Lesson(NamedTuple):
    """The title of a lesson, and what it teaches."""

    title: str
    about: str


LESSONS = {
    "scores": Lesson(
        "From a query to an output",
        "Drag a query and follow its scores, weights and output; scale and mask; compare with convolution and "
        "recurrence.",
    ),
    "roles": Lesson(
        "Query, key and value",
        "Why attention has three matrices, and which of them decides where it points and what it brings.",
    ),
    "heads": Lesson("Several heads in a trained model", "Run a trained model in the page on sentences of its words."),
    "translation": Lesson(
        "Attention in translation", "Compare a fixed vector with attention, and three ways to score a source word."
    ),
    "positions": Lesson(
        "How heads find positions", "Turn waves and rotations, and see which claims of a paper hold for four models."
    ),
    "limits": Lesson(
        "What attention costs and means", "See how cost grows with length, and test whether weights explain a model."
    ),
}


def numbers_of(name: str) -> dict[str, Any]:
    """The data of a lesson's page, as JSON can hold them."""
    from attnscope.capture.borrow import quiet

    with quiet():
        return import_module(f"{__name__}.{name}.numbers").numbers()


def exercises_of(name: str) -> dict[str, Exercise]:
    """The exercises of a lesson, by name, in the order of its prose."""
    from attnscope.capture.borrow import quiet

    with quiet():
        return import_module(f"{__name__}.{name}.numbers").exercises()
