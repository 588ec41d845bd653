"""The Transformer encoder (Vaswani et al. 2017) as a masked language model (Devlin et al. 2019).

Its attention runs through transformers' registry, so that it can be chosen and captured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnscope.kernels import positions
from attnscope.kernels.heads import MultiHeadAttention
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.reference import attend
from attnscope.models.common import TiedModel, mean_cross_entropy, reject_unused
from attnscope.models.configs import EncoderConfig, TransformerConfig
from attnscope.support.errors import AttnscopeError

_VECTOR = 16  # numbers in a vector of the processor
_BY_PAIR = {None, "eager", "sdpa", "flex_attention"}  # attention with a bias for each pair of tokens
_SHORT = 128  # keys, beyond which the rest of a row costs little


def written_out(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **_others: Any,
) -> tuple[Tensor, Tensor]:
    """The registry's "eager": all weights are computed and returned."""
    bias = position_bias
    if attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    weights = attend(query, key, value, scale=scaling, bias=bias)[1]
    return (nn.functional.dropout(weights, dropout, module.training) @ value).transpose(1, 2), weights


class RegisteredAttention(MultiHeadAttention):
    """Multi-head attention through transformers' registry, so that it can be chosen and captured."""

    def __init__(self, config: TransformerConfig, layer_idx: int, *, is_causal: bool = False) -> None:
        super().__init__(
            config.width,
            config.heads,
            key_width=config.key_width,
            value_width=config.value_width,
            dropout=config.attention_dropout,
        )
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The attention named by `config._attn_implementation`, with a mask of its type."""
        chosen: Any = self.config._attn_implementation  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(chosen, written_out)
        if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # PyTorch's attention on the CPU takes seven times as long in the backward pass in bfloat16
            query, key, value = query.float(), key.float(), value.float()
        if self.training and query.device.type == "cpu" and chosen == "sdpa" and bias is None:
            key, value, mask = _whole_vectors(query, key, value, mask, causal=self.is_causal)
        with torch.autocast("cpu", enabled=False):
            output, weights = attention(
                self,
                query,
                key,
                value,
                mask,
                dropout=self.dropout if self.training else 0.0,
                scaling=self.scaling,
                position_bias=_bias_for(chosen, bias, query),
            )
        return output.transpose(1, 2), weights


def _whole_vectors(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Masked keys up to a multiple of 16: PyTorch's softmax handles the rest of a row one by one."""
    queries, keys = query.shape[2], key.shape[2]
    more = -keys % _VECTOR
    if not more or keys > _SHORT:
        return key, value, mask
    if mask is None:
        mask = torch.ones(1, 1, queries, keys, dtype=torch.bool)
        mask = mask.tril(keys - queries) if causal else mask
    key, value = (nn.functional.pad(states, (0, 0, 0, more)) for states in (key, value))
    return key, value, nn.functional.pad(mask, (0, more), value=False if mask.dtype == torch.bool else float("-inf"))


def _bias_for(attention: str | None, bias: Tensor | None, query: Tensor) -> Tensor | None:
    """The bias of a registered attention, in its type and shape."""
    if bias is None:
        return None
    if attention is not None and ("flash" in attention or "paged" in attention):
        raise AttnscopeError(
            f"attention {attention!r} ignores the bias of positions 'alibi' and 't5': choose 'eager', 'sdpa' or "
            "'flex_attention' with set_attn_implementation"
        )
    batch = len(query) if attention == "flex_attention" else 1  # it does not broadcast
    return bias.to(query.dtype).expand(batch, -1, -1, -1)


class Residual(nn.Module):
    """The wrapper of a sublayer: normalise before it (pre) or after the sum (post), drop, add."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)
        self.before = config.norm == "pre"

    def enter(self, states: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        """The sublayer's input."""
        return self.norm(states) if self.before else states

    def leave(
        self, states: Float[Tensor, "batch token width"], output: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch token width"]:
        """Add the sublayer's output."""
        together = states + self.dropout(output)
        return together if self.before else self.norm(together)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between, at each position (Vaswani et al. 2017, equation 2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.feed_forward)
        self.down = nn.Linear(config.feed_forward, config.width)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, states: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        """Each token separately."""
        return self.down(self.dropout(self.up(states).relu()))


class SinusoidalPositions(nn.Module):
    """The fixed table of sines and cosines, float64, not a parameter; it grows with the longest text."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.length, self.width = length, width
        self._rows: Tensor | None = None

    @property
    def weight(self) -> Float[Tensor, "position width"]:
        """The rows so far; created on demand, as transformers builds models with empty tensors."""
        if self._rows is None:
            with torch.inference_mode(mode=False):  # so that an analysis may replace the rows
                self._rows = positions.sinusoidal_table(self.length, self.width)
        return self._rows

    def forward(self, length: int, start: int = 0) -> Float[Tensor, "position width"]:
        """Rows of the positions ``start .. start + length - 1``."""
        if start + length > self.length:
            self.length, self._rows = max(start + length, 2 * self.length), None
        return self.weight[start : start + length]


class AddPositions(nn.Module):
    """Token vectors, scaled by the square root of their width, with added positions if the scheme has them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.scheme, self.width = config.positions, config.width
        self.dropout = Dropout(config.dropout)
        if self.scheme == "learned":
            self.position_embeddings = positions.LearnedPositions(config.max_position_embeddings, config.width)
        elif self.scheme == "sinusoidal":
            self.position_embeddings = SinusoidalPositions(config.max_position_embeddings, config.width)

    def forward(
        self, vectors: Float[Tensor, "batch token width"], start: int = 0
    ) -> Float[Tensor, "batch token width"]:
        """The input of the first layer; the first token is at position `start`."""
        scale = self.width**0.5
        states = vectors * scale
        if self.scheme in {"learned", "sinusoidal"}:
            rows = self.position_embeddings(vectors.shape[1], start).to(states.device, states.dtype)
            # A trained table is scaled like tokens: Adam's steps, all of one size, then move both equally.
            states = states + (rows * scale if self.scheme == "learned" else rows)
        return self.dropout(states)


_rotation = lru_cache(maxsize=64)(positions.rotation)


class RelativePositions(nn.Module):
    """The scheme's part in self-attention: rotate queries and keys (RoPE), or add a bias (ALiBi, T5)."""

    def __init__(self, config: TransformerConfig, *, bidirectional: bool) -> None:
        super().__init__()
        self.config = config
        self.scheme, self.heads = config.positions, config.heads
        self.key_width = config.width // config.heads if config.key_width is None else config.key_width
        if self.scheme == "t5":
            self.relative = positions.RelativeBias(config.heads, bidirectional=bidirectional)

    def turn(self, length: int, device: torch.device) -> positions.Rotation | None:
        """The rotation of the positions up to `length`."""
        if self.scheme != "rope":
            return None
        rotation = _rotation(length, self.key_width)
        return positions.Rotation(rotation.cos.to(device), rotation.sin.to(device), rotation.layout)

    def bias(self, queries: int, keys: int, device: torch.device) -> Float[Tensor, "1 head query key"] | None:
        """The bias on scores; by offset for tiled scores without gradients."""
        if self.scheme not in {"alibi", "t5"}:
            return None
        chosen = self.config._attn_implementation  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if chosen in _BY_PAIR or torch.is_grad_enabled():
            if self.scheme == "alibi":
                return positions.alibi_bias(self.heads, queries, keys).to(device)[None]
            return self.relative(queries, keys)[None]
        if self.scheme == "alibi":
            by_offset = positions.alibi_by_offset(self.heads, queries, keys).to(device)
        else:
            by_offset = self.relative.by_offset(queries, keys)
        return OffsetBias(by_offset[None], queries)


_LEVELS = 2**16


class Dropout(nn.Module):
    """Dropout: random zeros, with the rest scaled up so that the mean stays (Hinton et al. 2012)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, states: Tensor) -> Tensor:
        """Drop elements in training."""
        if not (self.training and self.rate):
            return states
        dropped = round(self.rate * _LEVELS)
        if states.device.type != "cpu" or not 0 < dropped < _LEVELS:
            return F.dropout(states, self.rate)
        # a draw of 64 random bits decides on four elements
        words = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        stays = words.view(torch.int16)[: states.numel()].view(states.shape) >= dropped - _LEVELS // 2
        return states * stays * (_LEVELS / (_LEVELS - dropped))


class EncoderLayer(nn.Module):
    """Self-attention over the whole text, then the feed-forward part."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.self_attention = RegisteredAttention(config, layer)
        self.around_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, states: Tensor, mask: Any, bias: Tensor | None, turn: Any) -> tuple[Tensor, Tensor | None]:
        """States of the next layer, and the weights if they were computed."""
        output, weights = self.self_attention(self.around_attention.enter(states), mask=mask, bias=bias, rotation=turn)
        states = self.around_attention.leave(states, output)
        output = self.feed_forward(self.around_feed_forward.enter(states))
        return self.around_feed_forward.leave(states, output), weights


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with positions before and a norm after them."""

    main_input_name = "input_ids"

    def __init__(
        self, config: TransformerConfig, embedding: nn.Embedding, layer: type[nn.Module], count: int, *, both_ways: bool
    ) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.add_positions = AddPositions(config)
        self.relative = RelativePositions(config, bidirectional=both_ways)
        self.layers = nn.ModuleList(layer(config, number) for number in range(count))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()


class TransformerEncoder(Stack):
    """All layers over one text."""

    def __init__(self, config: TransformerConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding, EncoderLayer, config.encoder_layers, both_ways=True)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
        **others: Any,
    ) -> BaseModelOutput:
        """States after the last layer, ``(batch, token, width)``."""
        reject_unused(others)
        states = self.add_positions(self.embedding(input_ids))
        length = input_ids.shape[1]
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=attention_mask)
        bias = self.relative.bias(length, length, states.device)
        turn = self.relative.turn(length, states.device)
        weights: list[Tensor | None] = []
        for layer in self.layers:
            states, shares = layer(states, mask, bias, turn)
            weights.append(shares)
        return BaseModelOutput(self.norm(states), attentions=weights_or_none(weights))  # pyright: ignore[reportArgumentType]


def weights_or_none(weights: list[Tensor | None]) -> tuple[Tensor, ...] | None:
    """The weights of all layers; None for fused attention, which never stores its weights."""
    return tuple(layer for layer in weights if layer is not None) or None


class ByRegistry(PreTrainedModel):
    """Attention through transformers' registry, so that it can be chosen, and captured like any other model's."""

    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True


class EncoderForMaskedLM(ByRegistry, TiedModel):
    """A masked language model: bidirectional attention, with predictions for masked tokens.

    Parameters
    ----------
    config
        Sizes of the model, positions and norms.

    References
    ----------
    Devlin et al. (2019), NAACL.
    """

    config_class = EncoderConfig
    base_model_prefix = "encoder"
    _tied_weights_keys = {  # noqa: RUF012 transformers' form
        "encoder.embedding.weight": "embedding.weight",
        "lm_head.weight": "embedding.weight",
    }

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.width, config.pad_token_id)
        self.encoder = TransformerEncoder(config, self.embedding)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
        labels: Int[Tensor, "batch token"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> MaskedLMOutput:
        """Logits of every token, and the mean loss in nats over those that have a label (not -100).

        `num_items_in_batch`, from transformers' Trainer, is their number in a larger batch that this one is part of.
        """
        reject_unused(others)
        encoded = self.encoder(input_ids, attention_mask)
        logits = self.lm_head(encoded[0])
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, attentions=encoded.attentions)
