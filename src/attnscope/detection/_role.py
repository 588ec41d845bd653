"""What a role of an attention head is: the text that it shows on, its score, and who defined it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Kind = Literal["text", "repeated", "needle"]
LOOKS_BACK, LOOKS_AROUND, ANY = ("causal",), ("self", "causal"), ("self", "causal", "cross")


@dataclass(frozen=True)
class Role:
    """A role that heads may have, by a score between 0 and 1.

    Attributes
    ----------
    name, title
        In results, and for people.
    definition
        What the score is, in a sentence or two.
    source
        Who defined it.
    probe
        What is read: ``text`` (windows of the corpus), ``repeated`` (random tokens said twice), ``needle`` (a sentence
        hidden in a text, and a question about it).
    score
        From what one attention call shows of a batch of that (`seen`) to ``(batch, head)``.
    threshold
        From which score on a head has the role, where its source says so.
    more
        How many times uniform attention's score it must also be.
    layers
        Kinds of attention calls of which it is asked: ``self`` (sees both sides), ``causal``, ``cross``.
    otherwise
        Why it is not asked where there are no such layers.

    Examples
    --------
    >>> from attnscope.detection import ROLES
    >>> role = ROLES["previous_token"]
    >>> role.title, role.probe, role.threshold
    ('previous token', 'text', 0.5)
    """

    name: str
    title: str
    definition: str
    source: str
    probe: Kind
    score: Callable[[Any], Tensor]  # each takes what is seen of its own probe
    threshold: float | None = None
    layers: tuple[str, ...] = LOOKS_AROUND
    otherwise: str = "no layer attends within one text"
    more: float = 0.0
