"""The end of ``bundled:pronoun``: from the weights of "it" in the last layer to the word that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.bundled import MODELS
from attnscope.capture.load import load_model


@dataclass
class End:
    """Sentences of one length, read up to the weights of "it" in the last layer."""

    tokens: list[list[str]]
    it: Int[Tensor, " sentence"]  # the position of "it"
    weights: Float[Tensor, "sentence token"]  # of "it", one head
    values: Float[Tensor, "sentence token width"]
    state: Float[Tensor, "sentence width"]  # to which the head's output is added
    model: PreTrainedModel

    def log_probabilities(self, weights: Float[Tensor, "sentence token"]) -> Float[Tensor, "sentence word"]:
        """Log probabilities of the word at "it" with these weights: all that comes after them in the model."""
        encoder: Any = self.model.encoder
        last = encoder.layers[-1]
        head = weights[:, None] @ self.values
        state = self.state[:, None] + last.self_attention.out_proj(head)
        state = state + last.feed_forward(last.around_feed_forward.norm(state))
        return torch.log_softmax(self.model.lm_head(encoder.norm(state)), dim=-1)[:, 0]


@cache
def pronoun_model() -> tuple[PreTrainedModel, Any]:
    loaded = load_model(str(MODELS["bundled:pronoun"]))
    return loaded.model.eval(), loaded.tokenizer


@torch.no_grad()
def read(sentences: Sequence[str]) -> End:
    """Read sentences that have the same number of tokens and one "it" each."""
    model, tokenizer = pronoun_model()
    ids = torch.tensor([tokenizer(sentence)["input_ids"] for sentence in sentences])
    tokens = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
    it = torch.tensor([next(i for i, token in enumerate(row) if token.strip("▁Ġ ").lower() == "it") for row in tokens])
    encoder: Any = model.encoder
    last, entered = encoder.layers[-1], list[Tensor]()
    hook = last.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    model(ids)
    hook.remove()
    states, every = entered[0], torch.arange(len(ids))
    inside = last.around_attention.norm(states)
    attention = last.self_attention
    query, key, value = (part(inside) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    scores = (query[every, it][:, None] @ key.transpose(-2, -1))[:, 0] * attention.scaling
    return End(tokens, it, torch.softmax(scores, dim=-1), value, states[every, it], model)


def vocabulary() -> list[str]:
    """The words of the model, by their ids."""
    model, tokenizer = pronoun_model()
    return tokenizer.convert_ids_to_tokens(list(range(model.config.vocab_size)))


BOUND = 0.05  # total variation distance of predictions that counts as the same, as in Jain and Wallace (2019)
STEPS = 300


def moved(end: End, weights: Float[Tensor, "sentence token"]) -> tuple[Tensor, Tensor]:
    """Total variation distance of the predictions, and whether the likeliest word changes."""
    before, after = end.log_probabilities(end.weights), end.log_probabilities(weights)
    return (after.exp() - before.exp()).abs().sum(-1) / 2, after.argmax(-1) != before.argmax(-1)


def divergence(one: Float[Tensor, "*rows token"], other: Float[Tensor, "*rows token"]) -> Float[Tensor, "*rows"]:
    """Jensen-Shannon divergence of rows, nats; at most ln 2."""
    middle = (one + other) / 2

    def to_middle(row: Tensor) -> Tensor:
        return (row * ((row + 1e-12).log() - (middle + 1e-12).log())).sum(-1)

    return (to_middle(one) + to_middle(other)) / 2


@torch.enable_grad()
def adversarial(end: End) -> Float[Tensor, "sentence token"]:
    """Weights far from the model's own with which predictions move by at most the bound."""
    logits = (end.weights.clamp_min(1e-6).log() + 0.1 * torch.randn_like(end.weights)).requires_grad_()
    optimiser, best, far = torch.optim.Adam([logits], lr=0.2), end.weights.clone(), torch.zeros(len(end.weights))
    for _ in range(STEPS):
        weights = torch.softmax(logits, dim=-1)
        tvd, distance = moved(end, weights)[0], divergence(weights, end.weights)
        better = (tvd <= BOUND) & (distance > far)
        best = torch.where(better[:, None], weights.detach(), best)
        far = torch.where(better, distance.detach(), far)
        loss = (-distance + (tvd - BOUND).clamp_min(0) / BOUND).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return best
