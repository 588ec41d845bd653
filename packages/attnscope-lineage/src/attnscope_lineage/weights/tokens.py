"""Attribution scores of the tokens of one text, by twelve methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.borrow import borrowed
from attnscope.explanation.arrays.checks import labelled
from attnscope.explanation.study import Study
from attnscope.intervention.calls import inputs_of
from attnscope.intervention.contributions import shares
from attnscope.kernels import full
from attnscope.read.windows import window_name
from attnscope.support.checked import checked
from attnscope.support.checks import chosen
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.weights import calls
from attnscope_lineage.weights.arrays import FLOW_TOKENS, attention_flow
from attnscope_lineage.weights.blocks import find_blocks, record, value_outputs
from attnscope_lineage.weights.profiles import BlockNorms, Rollout, cannot_follow, residual_part

_FLOW_SECONDS = 7e-6  # time of one maximum flow for each edge of its graph
_FLOW_ENOUGH = 60.0  # largest time in seconds unless flow is requested by name
_OF_GRADIENTS = {"gradient_attention", "gradient", "gradient_input"}
_OF_PREDICTIONS = _OF_GRADIENTS | {"leave_one_out"}
_THROUGH_LAYERS = {"rollout", "flow", "gradient_attention", "block_norms_rollout"}


@checked
def token_contributions(
    study: Study,
    *,
    positions: Sequence[int] | None = None,
    outcomes: Sequence[int] | None = None,
    estimators: Sequence[str] | None = None,
) -> xr.Dataset:
    """Score how much each token of the first window matters to the predictions at some positions.

    Parameters
    ----------
    study
        A model and its texts, from `attnscope.explanation.study.study`; only the first window is scored.
    positions
        Positions whose predictions are explained; by default all.
    outcomes
        Token id (or class) of the explained prediction at each position; by default the likeliest.
    estimators
        Names in `TOKEN_ESTIMATORS`; by default all that are defined here. Flow is left out where it is slow.

    Returns
    -------
    xarray.Dataset
        ``score`` ``(estimator, position, token)``; larger means more important, and only the order of the tokens is
        comparable between methods. ``side`` ``(token)``: source or target. ``outcome`` ``(position)``: the explained
        id; ``probability``: its probability. The attribute ``skipped`` says which methods are not defined, and why.

    Raises
    ------
    AttnscopeError
        If a position or outcome does not exist, or a method requested by name is not defined for this model.

    References
    ----------
    Abnar and Zuidema (2020), Quantifying attention flow in Transformers (``rollout``, ``flow``). Kobayashi et al.
    (2020, 2021) (``norms``, ``block_norms``). Chefer et al. (2021) (``gradient_attention``).
    """
    requested = chosen("estimator", estimators, TOKEN_ESTIMATORS)
    with borrowed(study.model):
        one = OneText(study, positions, outcomes, differentiable=bool(_OF_GRADIENTS & set(requested)))
        scores: dict[str, np.ndarray] = {}
        skipped: list[str] = []
        for kind in requested:
            reason = _lacks(one, kind, by_name=estimators is not None)
            if not reason:
                scores[kind] = TOKEN_ESTIMATORS[kind][1](one)
            elif estimators is not None:
                raise AttnscopeError(f"{kind} is not defined here: {reason}. Leave it out")
            else:
                skipped.append(f"{kind}: {reason}")
    return _labelled(one, scores).assign_attrs(model=study.name, skipped="; ".join(skipped))


def _lacks(text: OneText, kind: str, *, by_name: bool) -> str:
    """Why a method is not possible; empty if it is."""
    if kind in _OF_PREDICTIONS and text.headless:
        return text.headless
    if kind in {"gradient", "gradient_input"} and len(text.leaves) < len(text.inputs):
        return f"no embedding lookup of {type(text.model).__name__} was found"
    if kind.startswith("norms"):
        return next((each.block.reason for each in text.records if each.block.output is None), "")
    reasons = [record.reason for record in text.records if record.reason]
    if kind.startswith("block_norms") and reasons:
        return reasons[0]
    tokens = text.sides.tokens
    if kind == "flow" and tokens > FLOW_TOKENS:
        return f"the text has {tokens} tokens, and flow takes at most {FLOW_TOKENS}"
    seconds = _FLOW_SECONDS * len(text.records) * tokens**2 * len(text.rows) * tokens
    if kind == "flow" and seconds > _FLOW_ENOUGH and not by_name:
        return f"it would take about {seconds / 60:.0f} minutes for {len(text.rows)} positions. Request it by name"
    return text.unfollowed if kind in _THROUGH_LAYERS else ""


def _labelled(text: OneText, scores: dict[str, np.ndarray]) -> xr.Dataset:
    tokens = np.arange(text.sides.tokens)
    values = np.stack(list(scores.values())) if scores else np.zeros((0, len(text.rows), len(tokens)))
    scored = xr.Dataset(
        {"score": labelled("estimator position token", values, "score of a token by each method", "of the method")},
        {
            "estimator": list(scores),
            "description": ("estimator", [TOKEN_ESTIMATORS[kind][0] for kind in scores]),
            "position": text.queries,
            "token": tokens,
            "side": ("token", np.where(tokens < text.sides.source, "source", "target")),
        },
    )
    if text.headless:
        return scored
    chance = text.predicted.detach().exp()[range(len(text.outcomes)), text.outcomes].double().cpu().numpy()
    return scored.assign(
        outcome=labelled("position", np.array(text.outcomes), "predicted outcome", "id"),
        probability=labelled("position", chance, "its probability", "share"),
    )


class OneText:
    """The first window of an input, and the positions whose predictions are explained."""

    def __init__(
        self, study: Study, positions: Sequence[int] | None, outcomes: Sequence[int] | None, *, differentiable: bool
    ) -> None:
        self.model, self.inputs = study.model, inputs_of(study.model, study.windows[0])
        self.name, self.sides = window_name(study.windows[0], 0), calls.sides_of(self.inputs)
        self.queries = self._numbered(positions)
        self.rows = [self.sides.predicting.start + query for query in self.queries]
        self.headless = calls.lacks_predictions(self.model, self.inputs)
        blocks = find_blocks(self.model, self.inputs)
        with calls.embedding_leaves(self.model, self.inputs) as self.leaves:
            self.records, output = record(
                self.model,
                self.inputs,
                blocks,
                self.name,
                differentiable=differentiable and not self.headless,
                with_head=not self.headless,
            )
        self.kinds = [each.site.kind for each in self.records]
        self.unfollowed = cannot_follow(self.sides, self.records)
        calls.check_matrices((each.call for each in self.records), self.name, in_a_graph=False)
        with torch.no_grad():
            self.weights = [full.weights_of(each.call)[0] for each in self.records]
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.predicted, self.outcomes = torch.zeros(0, 0, dtype=torch.float32), list[int]()
        if not self.headless:
            self._predict(output, outcomes)

    def _predict(self, output: Tensor, outcomes: Sequence[int] | None) -> None:
        of_text = output.ndim == 2  # noqa: PLR2004 one prediction for the whole text
        if of_text and len(self.queries) != 1:
            raise AttnscopeError(
                f"{type(self.model).__name__} makes one prediction for each text, and {len(self.queries)} positions "
                "were requested. Choose the one that its head reads, such as positions=[0]"
            )
        self.positions = torch.tensor([0] if of_text else self.queries)
        self.predicted = calls.log_probabilities(output, self.positions)[0]
        best = self.predicted.argmax(-1).tolist()
        self.outcomes = best if outcomes is None else list(outcomes)
        size = self.predicted.shape[-1]
        if len(self.outcomes) != len(best) or not all(0 <= outcome < size for outcome in self.outcomes):
            raise AttnscopeError(
                f"found outcomes {self.outcomes[:5]} for {len(best)} positions; expected one for each, from 0 to "
                f"{size - 1}"
            )

    def _numbered(self, positions: Sequence[int] | None) -> list[int]:
        count = self.sides.predicting.stop - self.sides.predicting.start
        chosen = list(range(count) if positions is None else positions)
        outside = [position for position in chosen if not 0 <= position < count]
        if outside:
            raise AttnscopeError(f"there is no position {outside[0]}: positions go from 0 to {count - 1}")
        if not chosen:
            raise AttnscopeError("found no positions; expected at least one in positions, or leave it out for all")
        return chosen

    def at(self, layer: int, matrix: Tensor) -> Scores:
        """A layer's rows at the positions, over the tokens of both texts; zero for layers of an encoder."""
        rows, columns = self.sides.of(self.kinds[layer])
        scores = np.zeros((len(self.queries), self.sides.tokens))
        if rows == self.sides.predicting:
            scores[:, columns] = matrix[self.queries].double().cpu().numpy()
        return scores

    def last(self, matrices: Sequence[Tensor]) -> Scores:
        """Scores by the last layer of each kind of attention."""
        last = {kind: layer for layer, kind in enumerate(self.kinds)}
        return np.sum([self.at(layer, matrices[layer]) for layer in last.values()], axis=0)

    def mean(self, matrices: Sequence[Tensor]) -> Scores:
        """Means over the layers of each kind of attention."""
        layers = defaultdict[str, list[int]](list)
        for layer, kind in enumerate(self.kinds):
            layers[kind].append(layer)
        parts = [np.mean([self.at(layer, matrices[layer]) for layer in of_kind], 0) for of_kind in layers.values()]
        return np.sum(parts, axis=0)

    @property
    def joint(self) -> Float[np.ndarray, "layer token token"]:
        """Each layer's mean weights over the tokens of both texts; the identity for a side without queries."""
        joint = np.tile(np.eye(self.sides.tokens), (len(self.records), 1, 1))
        for layer, kind, weights in zip(joint, self.kinds, self.weights, strict=True):
            rows, columns = self.sides.of(kind)
            layer[rows] = 0
            layer[rows, columns] = weights.mean(0).double().cpu().numpy()
        return joint

    @torch.no_grad()
    def norms(self) -> list[Tensor]:
        """Norms of the summed contributions of the heads of each layer."""
        norms: list[Tensor] = []
        for each, layer in zip(self.records, self.weights, strict=True):
            vectors = value_outputs(each)
            products = torch.einsum("hkw,gkw->khg", vectors, vectors)
            by_key = layer.to(products.dtype).permute(2, 0, 1)  # (key, head, query)
            norms.append(((products @ by_key) * by_key).sum(1).T.clamp_min(0).sqrt())
        return norms

    @torch.no_grad()
    def block_norms(self) -> list[Tensor]:
        pairs = zip(self.records, self.weights, strict=True)
        return [BlockNorms(each).rows(slice(0, layer.shape[1]), layer) for each, layer in pairs]

    def slopes(self, number: int, by: list[Tensor]) -> tuple[Tensor, ...]:
        """Derivative of the log probability of a position's outcome."""
        outcome = self.predicted[number, self.outcomes[number]]
        return torch.autograd.grad(outcome, by, retain_graph=True, allow_unused=True, materialize_grads=True)

    def by_token(self, size: Callable[[Tensor, Tensor], Tensor]) -> Scores:
        """Sizes of gradients with respect to the tokens' vectors."""
        scores: list[np.ndarray] = []
        for number in range(len(self.rows)):
            pairs = zip(self.slopes(number, self.leaves), self.leaves, strict=True)
            scores.append(torch.cat([size(slope[0], leaf.detach()[0]) for slope, leaf in pairs]).double().cpu().numpy())
        return np.stack(scores)


Scores = Float[np.ndarray, "position token"]


def _rollout(text: OneText) -> Scores:
    rolled = Rollout(text.sides)
    for kind, weights in zip(text.kinds, text.weights, strict=True):
        rolled.step(kind, weights.mean(0).double() / 2, 0.5)
    return rolled.matrix[text.rows].cpu().numpy()


def _block_norms_rollout(text: OneText) -> Scores:
    rolled = Rollout(text.sides)
    for each, layer in zip(text.records, text.block_norms(), strict=True):
        # the residual of a text's own layer is in its diagonal
        residual = torch.zeros_like(layer[:, :1])
        if each.site.kind == "cross":
            residual = residual_part(each).norm(dim=-1, keepdim=True)
        total = (layer.sum(1, keepdim=True) + residual).double().clamp_min(1e-300)
        rolled.step(each.site.kind, layer / total, residual / total)
    return rolled.matrix[text.rows].cpu().numpy()


def _gradient_attention(text: OneText) -> Scores:
    """A row of R - I for each position, from a vector that is propagated down from the last layer."""
    values = [full.values_of(each.call)[0].transpose(-2, -1) for each in text.records]
    scores: list[np.ndarray] = []
    for number, row in enumerate(text.rows):
        slopes = text.slopes(number, [each.output for each in text.records])
        start = torch.zeros(text.sides.tokens, dtype=torch.float64)
        start[row] = 1
        relevance = start.clone()
        for at in reversed(range(len(text.records))):
            queries, keys = text.sides.of(text.kinds[at])
            weights = text.weights[at]
            positive = (weights * (slopes[at][0].to(weights.dtype) @ values[at])).clamp_min(0).mean(0)
            relevance[keys] += relevance[queries] @ positive.double().cpu()
        scores.append((relevance - start).numpy())
    return np.stack(scores)


#: Methods, with a description of their scores and the function that computes them.
TOKEN_ESTIMATORS: dict[str, tuple[str, Callable[[OneText], Float[np.ndarray, "position token"]]]] = {
    "weights": (
        "mean over heads of the last layer's weights",
        lambda text: text.last([layer.mean(0) for layer in text.weights]),
    ),
    "weights_mean": ("the same, mean over layers", lambda text: text.mean([layer.mean(0) for layer in text.weights])),
    "norms": ("norm of the summed contributions of the last layer's heads", lambda text: text.last(text.norms())),
    "norms_mean": (
        "the same as shares of each row, mean over layers",
        lambda text: text.mean([shares(layer) for layer in text.norms()]),
    ),
    "block_norms": (
        "norm of the contribution to the last block's output, with residual and normalisation",
        lambda text: text.last(text.block_norms()),
    ),
    "block_norms_rollout": ("the same as shares of each row, multiplied over layers", _block_norms_rollout),
    "rollout": ("product over layers of half the identity and half the weights", _rollout),
    "flow": ("maximum flow through all layers", lambda text: attention_flow(text.joint, text.rows)),
    "gradient_attention": ("relevance through all layers, of the outcome's log probability", _gradient_attention),
    "gradient": (
        "norm of the gradient of the outcome's log probability with respect to the token's vector",
        lambda text: text.by_token(lambda slope, _: slope.norm(dim=-1)),
    ),
    "gradient_input": (
        "absolute product of that gradient and the vector",
        lambda text: text.by_token(lambda slope, vector: (slope * vector).sum(-1).abs()),
    ),
    "leave_one_out": (
        "total variation distance of the prediction when no query may attend to the token",
        lambda text: calls.leave_one_out(text.model, text.inputs, text.positions, text.name).T.double().cpu().numpy(),
    ),
}
