"""Which token matters to a prediction, by every kind: matrices of one text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.capture.borrow import borrowed
from attnscope.explanation.arrays.checks import labelled
from attnscope.intervention.arrays.paths import FLOW_TOKENS
from attnscope.intervention.contributions import kinds as _gradient_scores
from attnscope.intervention.contributions import kinds as _scores
from attnscope.intervention.contributions.kinds import chosen_kinds
from attnscope.intervention.contributions.run import OneText
from attnscope.intervention.effects import leave_one_out
from attnscope.intervention.given import InterventionInput, input_of
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

#: Methods, and what their scores are.
TOKEN_KINDS: dict[str, str] = {
    "weights": "mean over heads of the last layer's weights",
    "weights_mean": "the same, mean over layers",
    "norms": "norm of what the last layer's heads give together",
    "norms_mean": "the same as shares of each row, mean over layers",
    "block_norms": "norm of what the last block's output gets, residual and normalisation included",
    "block_norms_rollout": "the same as shares of each row, multiplied over layers",
    "rollout": "product over layers of half the identity and half the weights",
    "flow": "maximum flow through all layers",
    "gradient_attention": "relevance through all layers, of the outcome's log probability",
    "gradient": "norm of the gradient of the outcome's log probability by the token's vector",
    "gradient_input": "absolute product of that gradient and the vector",
    "leave_one_out": "total variation distance of the prediction when nobody may look at the token",
}
_FLOW_SECONDS = 7e-6  # of one maximum flow, for each edge of its graph
_FLOW_ENOUGH = 60.0  # seconds that flow may take unasked
_OF_GRADIENTS = {"gradient_attention", "gradient", "gradient_input"}
_OF_PREDICTIONS = _OF_GRADIENTS | {"leave_one_out"}
_THROUGH_LAYERS = {"rollout", "flow", "gradient_attention", "block_norms_rollout"}


@validated
def token_contributions(
    model: Model | Study | InterventionInput | None = None,
    text: Sources = None,
    *,
    target: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    places: Sequence[int] | None = None,
    outcomes: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> xr.Dataset:
    """Score how much each token of one text matters to the predictions at some places, by every kind."""
    given = input_of(model, text, targets=target, tokenizer=tokenizer, window=window, limit=1)
    chosen = chosen_kinds(kinds, TOKEN_KINDS)
    with borrowed(given.model):
        of_text = OneText(given, places, outcomes, differentiable=bool(_OF_GRADIENTS & set(chosen)))
        scores: dict[str, np.ndarray] = {}
        skipped: list[str] = []
        for kind in chosen:
            if not (reason := _lacks(of_text, kind, asked=kinds is not None)):
                scores[kind] = _SCORES[kind](of_text)
            elif kinds is not None:
                raise AttnscopeError(f"{kind} is not defined here: {reason}. Leave it out")
            else:
                skipped.append(f"{kind}: {reason}")
    return _labelled(of_text, scores).assign_attrs(model=given.name, skipped="; ".join(skipped))


_SCORES: dict[str, Callable[[OneText], Float[np.ndarray, "place token"]]] = {
    "weights": _scores.weights,
    "weights_mean": _scores.weights_mean,
    "norms": _scores.norms,
    "norms_mean": _scores.norms_mean,
    "block_norms": _scores.block_norms,
    "block_norms_rollout": _scores.block_norms_rollout,
    "rollout": _scores.rolled_out,
    "flow": _scores.flow,
    "gradient_attention": _gradient_scores.gradient_attention,
    "gradient": _gradient_scores.gradient,
    "gradient_input": _gradient_scores.gradient_input,
    "leave_one_out": lambda text: (
        leave_one_out(text.model, text.inputs, text.positions, text.name).T.double().cpu().numpy()
    ),
}


def _lacks(text: OneText, kind: str, *, asked: bool) -> str:
    """Why a kind is not possible; empty where it is."""
    if kind in _OF_PREDICTIONS and text.headless:
        return text.headless
    if kind in {"gradient", "gradient_input"} and len(text.leaves) < len(text.inputs):
        return f"{type(text.model).__name__} looks its token ids up in no table that was seen"
    if kind.startswith("norms"):
        return next((of.block.reason for of in text.records if of.block.output is None), "")
    if kind.startswith("block_norms") and (reason := next((of.reason for of in text.records if of.reason), "")):
        return reason
    if kind == "flow" and text.sides.tokens > FLOW_TOKENS:
        return f"the text has {text.sides.tokens} tokens, and flow takes at most {FLOW_TOKENS}"
    edges = len(text.records) * text.sides.tokens**2
    seconds = _FLOW_SECONDS * edges * len(text.rows) * text.sides.tokens
    if kind == "flow" and seconds > _FLOW_ENOUGH and not asked:
        return f"it would take about {seconds / 60:.0f} minutes for {len(text.rows)} places: ask for it by name"
    return text.unfollowed if kind in _THROUGH_LAYERS else ""


def _labelled(text: OneText, scores: dict[str, np.ndarray]) -> xr.Dataset:
    tokens = np.arange(text.sides.tokens)
    values = np.stack(list(scores.values())) if scores else np.zeros((0, len(text.rows), len(tokens)))
    scored = xr.Dataset(
        {"score": labelled("kind place token", values, "how much a token matters, by each kind", "of the kind")},
        {
            "kind": list(scores),
            "description": ("kind", [TOKEN_KINDS[kind] for kind in scores]),
            "place": text.places,
            "token": tokens,
            "side": ("token", np.where(tokens < text.sides.source, "source", "target")),
        },
    )
    if text.headless:
        return scored
    chance = text.predicted.detach().exp()[range(len(text.outcomes)), text.outcomes].double().cpu().numpy()
    return scored.assign(
        outcome=labelled("place", np.array(text.outcomes), "outcome that is asked about", "id"),
        probability=labelled("place", chance, "its probability", "share"),
    )
