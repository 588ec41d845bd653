"""The weights of planted models, in Hugging Face's own classes and in ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from attnscope.catalogue import where_to_find
from attnscope.models.configs import EncoderConfig, TransformerConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope.support.errors import AttnscopeError
from attnscope_zoo.heads import CONSTANT, START, Head, turned
from attnscope_zoo.zoo import HEAD_WIDTH, Draft

FEED_FORWARD = 32
_ABOVE_ZERO = 64.0  # a bias that lifts the inputs of BERT's last GELU into its straight part
_NOISE_NORM = 0.3  # of the feed-forward parts, which write into unread dimensions


@dataclass(frozen=True)
class _Architecture:
    """The classes of a model, and the names of its parameters."""

    model: Callable[[Any], PreTrainedModel]
    config: Callable[..., Any]
    tokens: str = "embedding"
    positions: tuple[str, ...] = ("encoder.add_positions.position_embeddings",)
    unembed: str = "lm_head"
    layer: str = "encoder.layers.{}."
    attention: str = "self_attention."
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj")
    up: tuple[str, ...] = ("feed_forward.up",)
    down: str = "feed_forward.down"
    is_own: bool = True  # ours multiply the tables by the root of the width


def _translator(config: TransformerConfig) -> PreTrainedModel:
    """An encoder-decoder, whose class is in a package of its own."""
    if find_spec("attnscope_lineage") is None:
        raise AttnscopeError(where_to_find(config.model_type))
    from attnscope_lineage.models.transformer import TransformerForConditionalGeneration

    return TransformerForConditionalGeneration(config)


_OWN = {"feed_forward": FEED_FORWARD, "positions": "learned"}
_TRANSLATOR = partial(
    _Architecture,
    _translator,
    positions=tuple(f"{side}.add_positions.position_embeddings" for side in ("encoder", "decoder")),
)
#: Architectures by form.
ARCHITECTURES: dict[str, dict[str, _Architecture]] = {
    "decoder": {
        "gpt2": _Architecture(
            GPT2LMHeadModel,
            partial(GPT2Config, n_inner=FEED_FORWARD, bos_token_id=START, eos_token_id=START),
            tokens="transformer.wte",
            positions=("transformer.wpe",),
            layer="transformer.h.{}.",
            attention="attn.",
            projections=("c_attn", "c_proj"),
            up=("mlp.c_fc",),
            down="mlp.c_proj",
            is_own=False,
        ),
        "llama": _Architecture(
            LlamaForCausalLM,
            partial(
                LlamaConfig,
                intermediate_size=FEED_FORWARD,
                head_dim=HEAD_WIDTH,
                pad_token_id=0,
                bos_token_id=START,
                eos_token_id=START,
            ),
            tokens="model.embed_tokens",
            positions=(),
            layer="model.layers.{}.",
            attention="self_attn.",
            projections=("q_proj", "k_proj", "v_proj", "o_proj"),
            up=("mlp.gate_proj", "mlp.up_proj"),
            down="mlp.down_proj",
            is_own=False,
        ),
    },
    "encoder": {
        "pre-norm": _Architecture(EncoderForMaskedLM, partial(EncoderConfig, norm="pre", **_OWN)),
        "bert": _Architecture(
            BertForMaskedLM,
            partial(BertConfig, intermediate_size=FEED_FORWARD, type_vocab_size=1),
            tokens="bert.embeddings.word_embeddings",
            positions=("bert.embeddings.position_embeddings",),
            unembed="cls.predictions.decoder",
            layer="bert.encoder.layer.{}.",
            attention="attention.",
            projections=("self.query", "self.key", "self.value", "output.dense"),
            up=("intermediate.dense",),
            down="output.dense",
            is_own=False,
        ),
    },
    "encoder-decoder": {
        "pre-norm": _TRANSLATOR(partial(TransformerConfig, norm="pre", **_OWN)),
        "post-norm": _TRANSLATOR(partial(TransformerConfig, norm="post", **_OWN)),
    },
}


class Weights(NamedTuple):
    """The weights of a planted model."""

    tokens: Float[np.ndarray, "vocabulary width"]
    unembed: Float[np.ndarray, "vocabulary width"]
    positions: Float[np.ndarray, "position width"] | None  # None where queries and keys are rotated
    calls: list[list[np.ndarray]]  # query, key, value (width, columns) and output (columns, width) of each call
    feed_forward: list[tuple[np.ndarray, np.ndarray]]  # up and down of each layer


def model_of(draft: Draft, weights: Weights) -> PreTrainedModel:
    """A model of the draft's architecture with these weights, in eval mode."""
    names = ARCHITECTURES[draft.setting.form][draft.setting.architecture]
    calls = _calls(draft, names)
    layers = list(dict.fromkeys(layer for layer, _ in calls))
    vocabulary, width = weights.tokens.shape
    config = names.config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=len(layers) - draft.encoder_calls,
        num_attention_heads=draft.heads,
        max_position_embeddings=draft.length,
        tie_word_embeddings=False,
        **({"encoder_layers": draft.encoder_calls} if draft.is_pair else {}),
    )
    with torch.random.fork_rng(devices=[]):  # creating a model draws weights
        model = names.model(config)
    scale = width**0.5 if names.is_own else 1.0
    matrices = {names.tokens: weights.tokens / scale, names.unembed: weights.unembed}
    if weights.positions is not None:
        matrices |= dict.fromkeys(names.positions, weights.positions / scale)
    is_gpt2 = draft.setting.architecture == "gpt2"  # one matrix for all three inputs, and none transposed
    oriented = np.asarray if is_gpt2 else np.transpose
    for (layer, attention), (*inputs, output) in zip(calls, weights.calls, strict=True):
        parts = [oriented(matrix) for matrix in (*([np.hstack(inputs)] if is_gpt2 else inputs), output)]
        matrices |= {f"{layer}{attention}{part}": matrix for part, matrix in zip(names.projections, parts, strict=True)}
    for layer, (up, down) in zip(layers, weights.feed_forward, strict=True):
        matrices |= {layer + name: oriented(up) for name in names.up} | {layer + names.down: oriented(down)}
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            is_norm = "norm" in name.lower() or ".ln_" in name
            parameter.fill_(CONSTANT / width**0.5 if is_norm and name.endswith("weight") else 0.0)
        for name, matrix in matrices.items():
            parameters[f"{name}.weight"].copy_(torch.from_numpy(matrix))
        if draft.setting.architecture == "bert":
            parameters["cls.predictions.transform.dense.weight"].copy_(torch.eye(width))
            parameters["cls.predictions.transform.dense.bias"].fill_(_ABOVE_ZERO)
    return model.eval()


def _calls(draft: Draft, names: _Architecture) -> list[tuple[str, str]]:
    """Layer and attention of each call, in the order of the forward pass."""
    if not draft.is_pair:
        return [(names.layer.format(number), names.attention) for number in range(len(draft.calls))]
    encoder, decoder = range(draft.encoder_calls), range((len(draft.calls) - draft.encoder_calls) // 2)
    return [(f"encoder.layers.{number}.", "self_attention.") for number in encoder] + [
        (f"decoder.layers.{number}.", f"{part}_attention.") for number in decoder for part in ("self", "cross")
    ]


def weights_of(draft: Draft, rng: np.random.Generator) -> Weights:
    """Draw noise and rotations, and write the heads of a filled draft with them."""
    space, noise = draft.space, draft.setting.noise
    columns = rng.normal(size=(space.width + 1, space.width))
    basis = np.linalg.qr(columns - columns.mean(0))[0].T  # orthonormal rows, each of mean 0

    def outward(rows: np.ndarray) -> np.ndarray:
        """Rows that are in the residual stream or are written to it."""
        return _noisy(rows, noise, rng) @ basis

    def inward(columns: np.ndarray) -> np.ndarray:
        """Columns that read from it."""
        return basis.T @ _noisy(columns.T, noise, rng).T

    calls: list[list[np.ndarray]] = []
    for heads in draft.calls:
        *inputs, outputs = zip(*(_factors(head, draft, rng) for head in heads), strict=True)
        calls.append([np.hstack([inward(matrix) for matrix in part]) for part in inputs])
        calls[-1].append(np.vstack([outward(matrix) for matrix in outputs]))
    table = draft.positions.table(space)
    return Weights(
        tokens=outward(draft.tokens),
        unembed=outward(draft.unembed),
        positions=None if table is None else outward(table),
        calls=calls,
        feed_forward=[_feed_forward(draft, basis, rng) for _ in range(draft.layers)],
    )


def _noisy(rows: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """Noise everywhere except along the constant direction, whose norm would make it loud."""
    noise = rng.normal(size=rows.shape) * (size * np.sqrt(np.mean(rows[:, 1:] ** 2)))
    noise[:, 0] = 0.0
    return rows + noise


def _factors(head: Head, draft: Draft, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """W_Q, W_K, W_V ``(width, r)`` and W_O ``(r, width)`` of one head, its inner basis rotated at random."""
    query, key = draft.positions.projections(head.rule, draft.space, HEAD_WIDTH, rng)
    scale = HEAD_WIDTH**0.25  # attention divides scores by the root of the width
    turn = turned(HEAD_WIDTH, rng)[: len(head.move.reads)]
    return query * scale, key * scale, head.move.reads.T @ turn, turn.T @ head.move.writes


def _feed_forward(draft: Draft, basis: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random functions of token and position, written into unread dimensions."""
    inputs, junk = np.vstack([draft.rows("token"), draft.rows("position")]), draft.rows("junk")
    up = inputs.T @ rng.normal(size=(len(inputs), FEED_FORWARD))
    down = rng.normal(size=(FEED_FORWARD, len(junk))) @ junk
    return basis.T @ up, down @ basis * (_NOISE_NORM / (FEED_FORWARD * len(junk)) ** 0.5)
