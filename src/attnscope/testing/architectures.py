"""Planted weights in models of Hugging Face's classes and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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

from attnscope.models.configs import EncoderConfig, TransformerConfig
from attnscope.models.transformer import EncoderForMaskedLM, TransformerForConditionalGeneration
from attnscope.testing.heads import CONSTANT, START, Head, Positions, Space, turned

Matrices = dict[str, np.ndarray | None]
_ABOVE_ZERO = 64.0  # a bias that lifts all inputs of BERT's last GELU into its linear part


def model_of(plan: Plan, weights: ModelWeights) -> PreTrainedModel:
    """A model of the plan's architecture with these weights, in eval mode."""
    make = _MAKERS[plan.setting.form, plan.setting.architecture]
    with torch.random.fork_rng(devices=[]):  # a model draws weights when it is made
        model, matrices = make(plan, weights)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            is_norm = "norm" in name.lower() or ".ln_" in name
            parameter.fill_(weights.gain if is_norm and name.endswith("weight") else 0.0)
        for name, matrix in matrices.items():
            if matrix is not None:
                parameters[name].copy_(torch.from_numpy(matrix))
    return model.eval()


def _gpt2(plan: Plan, weights: ModelWeights) -> tuple[PreTrainedModel, Matrices]:
    config = GPT2Config(
        vocab_size=len(weights.tokens),
        n_positions=plan.positions.length,
        n_embd=weights.width,
        n_layer=plan.layers,
        n_head=weights.heads,
        n_inner=FEED_FORWARD,
        bos_token_id=START,
        eos_token_id=START,
        tie_word_embeddings=False,
    )
    matrices: Matrices = {
        "transformer.wte.weight": weights.tokens,
        "transformer.wpe.weight": weights.positions,
        "lm_head.weight": weights.unembed,
    }
    for number, (call, (up, down)) in enumerate(zip(weights.calls, weights.feed_forward, strict=True)):
        block = f"transformer.h.{number}."
        matrices |= {
            block + "attn.c_attn.weight": np.hstack([call.query, call.key, call.value]),
            block + "attn.c_proj.weight": call.output,
            block + "mlp.c_fc.weight": up,
            block + "mlp.c_proj.weight": down,
        }
    return GPT2LMHeadModel(config), matrices


def _llama(plan: Plan, weights: ModelWeights) -> tuple[PreTrainedModel, Matrices]:
    config = LlamaConfig(
        vocab_size=len(weights.tokens),
        hidden_size=weights.width,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=plan.layers,
        num_attention_heads=weights.heads,
        head_dim=weights.head_width,
        max_position_embeddings=plan.positions.length,
        pad_token_id=0,
        bos_token_id=START,
        eos_token_id=START,
    )
    matrices: Matrices = {"model.embed_tokens.weight": weights.tokens, "lm_head.weight": weights.unembed}
    for number, (call, (up, down)) in enumerate(zip(weights.calls, weights.feed_forward, strict=True)):
        layer = f"model.layers.{number}."
        matrices |= _projections(layer + "self_attn.", call, "q_proj", "k_proj", "v_proj", "o_proj")
        matrices |= {
            layer + "mlp.gate_proj.weight": up.T,
            layer + "mlp.up_proj.weight": up.T,
            layer + "mlp.down_proj.weight": down.T,
        }
    return LlamaForCausalLM(config), matrices


def _bert(plan: Plan, weights: ModelWeights) -> tuple[PreTrainedModel, Matrices]:
    config = BertConfig(
        vocab_size=len(weights.tokens),
        hidden_size=weights.width,
        num_hidden_layers=plan.layers,
        num_attention_heads=weights.heads,
        intermediate_size=FEED_FORWARD,
        max_position_embeddings=plan.positions.length,
        type_vocab_size=1,
        tie_word_embeddings=False,
    )
    head = "cls.predictions."
    matrices: Matrices = {
        "bert.embeddings.word_embeddings.weight": weights.tokens,
        "bert.embeddings.position_embeddings.weight": weights.positions,
        head + "transform.dense.weight": np.eye(weights.width),
        head + "transform.dense.bias": np.full(weights.width, _ABOVE_ZERO),
        head + "decoder.weight": weights.unembed,
    }
    for number, (call, (up, down)) in enumerate(zip(weights.calls, weights.feed_forward, strict=True)):
        layer = f"bert.encoder.layer.{number}."
        names = ("self.query", "self.key", "self.value", "output.dense")
        matrices |= _projections(layer + "attention.", call, *names)
        matrices |= {layer + "intermediate.dense.weight": up.T, layer + "output.dense.weight": down.T}
    return BertForMaskedLM(config), matrices


def _encoder(plan: Plan, weights: ModelWeights) -> tuple[PreTrainedModel, Matrices]:
    model = EncoderForMaskedLM(EncoderConfig(**_sizes(plan, weights), encoder_layers=plan.layers))
    matrices = _tables(weights, "encoder")
    for number, (call, up_down) in enumerate(zip(weights.calls, weights.feed_forward, strict=True)):
        matrices |= _layer(f"encoder.layers.{number}.", up_down, self_attention=call)
    return model, matrices


def _translator(plan: Plan, weights: ModelWeights) -> tuple[PreTrainedModel, Matrices]:
    count = plan.encoder_calls
    config = TransformerConfig(**_sizes(plan, weights), encoder_layers=count, decoder_layers=plan.layers - count)
    model = TransformerForConditionalGeneration(config)
    matrices = _tables(weights, "encoder", "decoder")
    for number, (call, up_down) in enumerate(zip(weights.calls[:count], weights.feed_forward, strict=False)):
        matrices |= _layer(f"encoder.layers.{number}.", up_down, self_attention=call)
    later = zip(weights.calls[count::2], weights.calls[count + 1 :: 2], weights.feed_forward[count:], strict=True)
    for number, (own, cross, up_down) in enumerate(later):
        name = f"decoder.layers.{number}."
        matrices |= _layer(name, up_down, self_attention=own, cross_attention=cross)
    return model, matrices


def _sizes(plan: Plan, weights: ModelWeights) -> dict[str, Any]:
    """The weights of our masked language models."""
    return {
        "vocab_size": len(weights.tokens),
        "width": weights.width,
        "heads": weights.heads,
        "feed_forward": FEED_FORWARD,
        "positions": "learned",
        "max_position_embeddings": plan.positions.length,
        "norm": plan.setting.architecture.removesuffix("-norm"),
        "tie_word_embeddings": False,
    }


def _tables(weights: ModelWeights, *sides: str) -> Matrices:
    """Positions of our models, which multiply them by the square root of the width."""
    scale = weights.width**0.5
    places = None if weights.positions is None else weights.positions / scale
    return {"embedding.weight": weights.tokens / scale, "lm_head.weight": weights.unembed} | {
        f"{side}.add_positions.position_embeddings.weight": places for side in sides
    }


def _layer(name: str, up_down: tuple[np.ndarray, np.ndarray], **calls: CallMatrices) -> Matrices:
    up, down = up_down
    matrices: Matrices = {name + "feed_forward.up.weight": up.T, name + "feed_forward.down.weight": down.T}
    for attention, call in calls.items():
        matrices |= _projections(f"{name}{attention}.", call, "q_proj", "k_proj", "v_proj", "out_proj")
    return matrices


def _projections(name: str, call: CallMatrices, *parts: str) -> Matrices:
    """The four linear maps of an attention layer."""
    matrices = (call.query, call.key, call.value, call.output)
    return {f"{name}{part}.weight": matrix.T for part, matrix in zip(parts, matrices, strict=True)}


_MAKERS: dict[tuple[str, str], Callable[[Plan, ModelWeights], tuple[PreTrainedModel, Matrices]]] = {
    ("decoder", "gpt2"): _gpt2,
    ("decoder", "llama"): _llama,
    ("encoder", "pre-norm"): _encoder,
    ("encoder", "bert"): _bert,
    ("encoder-decoder", "pre-norm"): _translator,
    ("encoder-decoder", "post-norm"): _translator,
}


FEED_FORWARD = 32
_LOUDNESS = 0.3  # of the feed-forward parts, which write to unused directions


@dataclass(frozen=True, eq=False)
class CallMatrices:
    """Matrices of one attention call, with concatenated heads; rows are inputs."""

    query: Float[np.ndarray, "width columns"]
    key: Float[np.ndarray, "width columns"]
    value: Float[np.ndarray, "width columns"]
    output: Float[np.ndarray, "columns width"]


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """All weights of an architecture."""

    tokens: Float[np.ndarray, "vocabulary width"]  # ``(vocabulary, width)``
    unembed: Float[np.ndarray, "vocabulary width"]
    positions: Float[np.ndarray, "position width"] | None  # ``(position, width)``; None for rotated queries and keys
    calls: tuple[CallMatrices, ...]  # matrices of each attention call
    feed_forward: tuple[tuple[np.ndarray, np.ndarray], ...]  # up and down of each layer
    gain: float  # weight of every norm, so that it multiplies by about 1
    heads: int  # heads of each call, and their width
    head_width: int

    @property
    def width(self) -> int:
        """The width of the model."""
        return self.tokens.shape[1]


def weights_of(plan: Plan, rng: np.random.Generator) -> ModelWeights:
    """The weights of a plan, with random noise and rotations."""
    basis = _basis(plan.space.width, rng)
    noise = plan.setting.noise

    def outward(rows: np.ndarray, size: float = noise) -> np.ndarray:
        """Rows that write to the residual stream."""
        return _noisy(rows, size, rng) @ basis

    def inward(columns: np.ndarray) -> np.ndarray:
        """Columns that read from it."""
        return basis.T @ _noisy(columns.T, noise, rng).T

    calls: list[CallMatrices] = []
    for heads in plan.calls:
        parts = [_factors(head, plan, rng) for head in heads]
        query, key, value, output = ([part[number] for part in parts] for number in range(4))
        calls.append(
            CallMatrices(
                np.hstack([inward(vector) for vector in query]),
                np.hstack([inward(vector) for vector in key]),
                np.hstack([inward(vector) for vector in value]),
                np.vstack([outward(vector) for vector in output]),
            )
        )
    table = plan.positions.table(plan.space)
    return ModelWeights(
        tokens=outward(plan.tokens),
        unembed=outward(plan.unembed),
        positions=None if table is None else outward(table),
        calls=tuple(calls),
        feed_forward=tuple(_feed_forward(plan, basis, rng) for _ in range(plan.layers)),
        gain=CONSTANT / basis.shape[1] ** 0.5,
        heads=len(plan.calls[0]),
        head_width=plan.head_width,
    )


def _basis(width: int, rng: np.random.Generator) -> Float[np.ndarray, "width model"]:
    """Orthonormal rows, each of mean 0."""
    columns = rng.normal(size=(width + 1, width))
    return np.linalg.qr(columns - columns.mean(0))[0].T


def _noisy(rows: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """Noise except along the constant direction, whose norm would amplify it."""
    noise = rng.normal(size=rows.shape) * (size * np.sqrt(np.mean(rows[:, 1:] ** 2)))
    noise[:, 0] = 0.0
    return rows + noise


def _factors(head: Head, plan: Plan, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """W_Q, W_K, W_V ``(width, r)`` and W_O ``(r, width)`` of one head, with a random inner basis."""
    width = plan.head_width
    query, key = plan.positions.projections(head.rule, plan.space, width, rng)
    scale = width**0.25  # attention divides scores by the square root of the width
    turn = turned(width, rng)[: len(head.move.reads)]
    return query * scale, key * scale, head.move.reads.T @ turn, turn.T @ head.move.writes


def _feed_forward(plan: Plan, basis: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random functions of token and position, written to unused directions."""
    heard, junk = (np.vstack([plan.space.rows(part) for part in ("token", "position")]), plan.space.rows("junk"))
    up = heard.T @ rng.normal(size=(len(heard), FEED_FORWARD))
    down = rng.normal(size=(FEED_FORWARD, len(junk))) @ junk
    return basis.T @ up, down @ basis * (_LOUDNESS / (FEED_FORWARD * len(junk)) ** 0.5)


ARCHITECTURES = {
    "decoder": ("gpt2", "llama"),
    "encoder": ("pre-norm", "bert"),
    "encoder-decoder": ("pre-norm", "post-norm"),
}


@dataclass(frozen=True)
class Setting:
    """The settings of a planted model."""

    form: str  # ``decoder``, ``encoder`` or ``encoder-decoder``
    architecture: str  # one of `ARCHITECTURES` of that form
    # standard deviation of the noise on every weight, as a share of the root mean square of its matrix
    noise: float
    seed: int  # seed of all random numbers


@dataclass(eq=False)
class Plan:
    """A model in the directions of its `Space`: tokens in, heads of every attention call, answers out."""

    setting: Setting
    space: Space
    positions: Positions
    # ``(vocabulary, width)``: embedding and unembedding
    tokens: Float[np.ndarray, "vocabulary width"]
    unembed: Float[np.ndarray, "vocabulary width"]
    head_width: int  # columns of a head's queries, keys and values
    # number of calls of the encoder in an encoder-decoder; the decoder's alternate between self and cross
    encoder_calls: int = 0
    # heads of each attention call, in the order of the forward pass
    calls: list[list[Head]] = field(default_factory=list[list[Head]])

    @property
    def layers(self) -> int:
        """Number of feed-forward parts: one for each attention call, or for each pair of self and cross."""
        return self.encoder_calls + (len(self.calls) - self.encoder_calls) // self.calls_a_layer

    @property
    def calls_a_layer(self) -> int:
        """Attention calls of a layer of the decoder."""
        return 2 if self.setting.form == "encoder-decoder" else 1
