"""The weights in models: Hugging Face's own classes, and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from attnscope.models import (
    EncoderConfig,
    EncoderForMaskedLM,
    TransformerConfig,
    TransformerForConditionalGeneration,
)
from attnscope.zoo._plan import Plan
from attnscope.zoo._task import START
from attnscope.zoo._weights import FEED_FORWARD, CallMatrices, ModelWeights

Matrices = dict[str, np.ndarray | None]
_ABOVE_ZERO = 64.0  # a bias that lifts all that BERT's last GELU sees into its straight part


def model_of(plan: Plan, weights: ModelWeights) -> PreTrainedModel:
    """A model of the plan's architecture that holds these weights, in eval mode.

    Parameters that are not named are 0, and norms multiply by about 1. See `attnscope.zoo.build`.
    """
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
    config = TransformerConfig(
        **_sizes(plan, weights), encoder_layers=count, decoder_layers=plan.layers - count
    )
    model = TransformerForConditionalGeneration(config)
    matrices = _tables(weights, "encoder", "decoder")
    for number, (call, up_down) in enumerate(zip(weights.calls[:count], weights.feed_forward, strict=False)):
        matrices |= _layer(f"encoder.layers.{number}.", up_down, self_attention=call)
    later = zip(
        weights.calls[count::2], weights.calls[count + 1 :: 2], weights.feed_forward[count:], strict=True
    )
    for number, (own, cross, up_down) in enumerate(later):
        name = f"decoder.layers.{number}."
        matrices |= _layer(name, up_down, self_attention=own, cross_attention=cross)
    return model, matrices


def _sizes(plan: Plan, weights: ModelWeights) -> dict[str, Any]:
    """Of our own models."""
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
    """Of our own models, which multiply them by the root of the width."""
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
    """The four linear maps of an attention."""
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
