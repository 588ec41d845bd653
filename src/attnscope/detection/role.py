"""Roles of attention heads: the probe that each shows on, its score, its threshold, and who defined it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from attnscope.detection.calls import DELIMITERS, FIRST
from attnscope.measure.labels import LOCAL, MORE
from attnscope.support.arguments import validated
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError

Kind = Literal["text", "repeated", "needle"]
LOOKS_BACK, LOOKS_AROUND, ANY = ("causal",), ("self", "causal"), ("self", "causal", "cross")


@dataclass(frozen=True)
class Role:
    """A role that heads may have, by a score between 0 and 1."""

    name: str  # in results
    title: str  # for people
    definition: str  # what the score is, in a sentence or two
    source: str  # who defined it
    # windows of the corpus, random tokens repeated once, or a sentence hidden in a text and a question about it
    probe: Kind
    score: Callable[[Any], Tensor]  # from what a call shows of its probe (`calls.py`) to ``(batch, head)``
    threshold: float | None = None  # score from which a head has the role, where its source has one
    layers: tuple[str, ...] = LOOKS_AROUND  # kinds of attention calls that may have it
    otherwise: str = "no layer attends within one text"  # why it is left out where there are no such layers
    more: float = 0.0  # how many times uniform attention's score it must also be

    def reached(self, scores: np.ndarray, equal: np.ndarray) -> np.ndarray:
        """Which scores ``(..., layer, head)`` have the role, next to those of uniform attention ``(..., layer)``."""
        least = np.inf if self.threshold is None else self.threshold
        return (scores >= least) & (scores >= self.more * equal[..., None])


_CLARK = "Clark et al. 2019, What Does BERT Look At?"
_SINK = "Gu et al. 2024, When Attention Sink Emerges in Language Models (sail-sg/Attention-Sink)"
_LENS = "TransformerLens, head_detector"
_ONE_SIDED = "every layer sees both sides or another text"
ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role(
            "previous_token",
            "previous token",
            "Share of the weight at offset -1; more than half makes a previous-token head.",
            f"{_CLARK}; the score is that of {_LENS}",
            "text",
            lambda shown: shown.at(-1),
            threshold=0.5,
        ),
        Role(
            "next_token",
            "next token",
            "Share of the weight at offset 1; more than half makes a next-token head.",
            _CLARK,
            "text",
            lambda shown: shown.at(1),
            threshold=0.5,
            layers=("self",),
            otherwise="no layer sees later tokens",
        ),
        Role(
            "current_token",
            "current token",
            "Share of the weight on the token itself.",
            _CLARK,
            "text",
            lambda shown: shown.at(0),
        ),
        Role(
            "first_token",
            "first-token sink",
            "Mean weight on the first token, over all queries that see it; above 0.3 it is a sink.",
            _SINK,
            "text",
            lambda shown: shown.on(FIRST),
            threshold=0.3,
            layers=ANY,
        ),
        Role(
            "sink",
            "sink, any token",
            "Largest mean weight that a key gets from the queries that see it, over the keys that at least half of the "
            "queries see; above 0.3 that key is a sink.",
            f"{_SINK}, for every key; the bound on late keys, which few queries see, is ours",
            "text",
            lambda shown: shown.most_received(),
            threshold=0.3,
            layers=ANY,
        ),
        Role(
            "local",
            "local",
            "Share of the weight within 8 tokens on either side; half or more, and twice uniform attention's share, is "
            "local.",
            "attnscope scan, kinds of heads",
            "text",
            lambda shown: shown.near(),
            threshold=LOCAL,
            more=MORE,
        ),
        Role(
            "delimiter",
            "delimiter",
            "Share of the weight on punctuation, line breaks and special tokens behind the first place.",
            f"{_CLARK} (heads that look at periods, commas and [SEP])",
            "text",
            lambda shown: shown.on(DELIMITERS),
            layers=ANY,
        ),
        Role(
            "streaming",
            "streaming",
            "Share of the weight on the first 4 and the latest 64 tokens, of queries that see more than these. Of the "
            "definition this is the attention pattern; that the output does not change is not measured here.",
            "Xiao et al. 2024, DuoAttention",
            "text",
            lambda shown: shown.streamed(),
            layers=LOOKS_BACK,
            otherwise=_ONE_SIDED,
        ),
        Role(
            "duplicate_token",
            "duplicate token",
            "On random tokens said twice: mean weight from a token's second occurrence to its first.",
            f"{_LENS}; Wang et al. 2022, Interpretability in the Wild",
            "repeated",
            lambda shown: shown.mean(0),
        ),
        Role(
            "induction",
            "induction",
            "On random tokens said twice: mean weight from a token's second occurrence to the token after its first.",
            f"{_LENS}; Olsson et al. 2022, In-context Learning and Induction Heads",
            "repeated",
            lambda shown: shown.mean(1),
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: what comes next need not be guessed there",
        ),
        Role(
            "retrieval",
            "retrieval",
            "Of the tokens of a needle hidden in a text, the share that the model says while the head's largest weight "
            "lies on that very token; mean over prompts that the model answers; 0.1 or more makes a retrieval head.",
            "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality "
            "(nightdessert/Retrieval_Head)",
            "needle",
            lambda shown: shown.score(),
            threshold=0.1,
            layers=LOOKS_BACK,
            otherwise=f"{_ONE_SIDED}: the model does not go on with a text",
        ),
    )
}


@validated
def choose_roles(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of roles; None means all, one string holds names with commas between."""
    if names is None:
        return tuple(ROLES)
    requested = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    unknown = [name for name in requested if name not in ROLES]
    if unknown or not requested:
        what = f"there is no role {unknown[0]!r:.60}" if unknown else "no role was named"
        raise AttnscopeError(f"{what}: choose from {', '.join(ROLES)}")
    return tuple(name for name in ROLES if name in requested)


#: By name: what the weights are, in words.
CONTROLS = {
    "initialised": "drawn anew, as before training",
    "shuffled": "those of the model, each matrix in a random order",
}


@validated
def choose_controls(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of controls; None means all, ``"none"`` none."""
    if names is None:
        return tuple(CONTROLS)
    requested = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if requested == ["none"]:
        return ()
    unknown = [name for name in requested if name not in CONTROLS]
    if unknown:
        raise AttnscopeError(f"there is no control {shortly(unknown[0])}: choose from {', '.join(CONTROLS)}, or none")
    return tuple(name for name in CONTROLS if name in requested)
