"""Layers of the Transformer: attention that transformers' registry carries out, and what stands around it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnscope.kernels.heads import MultiHeadAttention
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.positions import (
    LearnedPositions,
    RelativeBias,
    Rotation,
    alibi_bias,
    alibi_by_offset,
    rotation,
    sinusoidal_table,
)
from attnscope.kernels.reference import attend
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.models.configs import TransformerConfig

_VECTOR = 16  # numbers that the processor takes at a time
_BY_PAIR = {None, "eager", "sdpa", "flex_attention"}  # attention that reads a bias for each pair of tokens
_SHORT = 128  # keys, beyond which the rest of a row weighs little


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
    """The registry's "eager": every weight is made and returned."""
    bias = position_bias
    if attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    weights = attend(query, key, value, scale=scaling, bias=bias)[1]
    dropped = nn.functional.dropout(weights, dropout, module.training)
    return (dropped @ value).transpose(1, 2), weights


class RegisteredAttention(MultiHeadAttention):
    """Many heads whose attention transformers' registry carries out, so that it can be chosen and watched."""

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
        """What `config._attn_implementation` names; the mask is of the type that it takes."""
        chosen: Any = self.config._attn_implementation  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(chosen, written_out)
        if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # PyTorch's attention on the CPU takes seven times as long backwards in bfloat16
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
    """Masked keys up to a multiple of 16: PyTorch's softmax takes the rest of a row one by one."""
    queries, keys = query.shape[2], key.shape[2]
    more = -keys % _VECTOR
    if not more or keys > _SHORT:
        return key, value, mask
    if mask is None:
        mask = torch.ones(1, 1, queries, keys, dtype=torch.bool)
        mask = mask.tril(keys - queries) if causal else mask
    key, value = (nn.functional.pad(states, (0, 0, 0, more)) for states in (key, value))
    hidden = False if mask.dtype == torch.bool else float("-inf")
    return key, value, nn.functional.pad(mask, (0, more), value=hidden)


def _bias_for(attention: str | None, bias: Tensor | None, query: Tensor) -> Tensor | None:
    """What a registered attention adds to its scores, in the type and shape that it reads."""
    if bias is None:
        return None
    if attention is not None and ("flash" in attention or "paged" in attention):
        raise AttnscopeError(
            f"attention {attention!r} leaves out what positions 'alibi' and 't5' add to the scores: choose 'eager', "
            "'sdpa' or 'flex_attention' with set_attn_implementation"
        )
    batch = len(query) if attention == "flex_attention" else 1  # it does not broadcast
    return bias.to(query.dtype).expand(batch, -1, -1, -1)


class Residual(nn.Module):
    """What stands around a sublayer: normalise before it (pre) or after the sum (post), drop, add."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)
        self.before = config.norm == "pre"

    def enter(self, states: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        """What the sublayer reads."""
        return self.norm(states) if self.before else states

    def leave(
        self, states: Float[Tensor, "batch token width"], made: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch token width"]:
        """Add what the sublayer made."""
        together = states + self.dropout(made)
        return together if self.before else self.norm(together)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between, at each place alone (Vaswani et al. 2017, equation 2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.feed_forward)
        self.down = nn.Linear(config.feed_forward, config.width)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, states: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        """Each token on its own."""
        return self.down(self.dropout(self.up(states).relu()))


class SinusoidalPositions(nn.Module):
    """The fixed table of sines and cosines, float64: no parameter, and no end, as it grows with the longest text."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.length, self.width = length, width
        self._rows: Tensor | None = None

    @property
    def weight(self) -> Float[Tensor, "position width"]:
        """The rows so far; made when asked for, as transformers builds models where tensors hold no numbers."""
        if self._rows is None:
            with torch.inference_mode(mode=False):  # so that an analysis may put other rows in their place
                self._rows = sinusoidal_table(self.length, self.width)
        return self._rows

    def forward(self, length: int, start: int = 0) -> Float[Tensor, "position width"]:
        """Rows of the positions ``start .. start + length - 1``."""
        if start + length > self.length:
            self.length, self._rows = max(start + length, 2 * self.length), None
        return self.weight[start : start + length]


class AddPositions(nn.Module):
    """Token vectors, scaled by the root of their width, with their positions added where the scheme adds them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.scheme, self.width = config.positions, config.width
        self.dropout = Dropout(config.dropout)
        if self.scheme == "learned":
            self.position_embeddings = LearnedPositions(config.max_position_embeddings, config.width)
        elif self.scheme == "sinusoidal":
            self.position_embeddings = SinusoidalPositions(config.max_position_embeddings, config.width)

    def forward(
        self, vectors: Float[Tensor, "batch token width"], start: int = 0
    ) -> Float[Tensor, "batch token width"]:
        """What the first layer reads; the first token stands at position `start`."""
        scale = self.width**0.5
        states = vectors * scale
        if self.scheme in {"learned", "sinusoidal"}:
            rows = self.position_embeddings(vectors.shape[1], start).to(states.device, states.dtype)
            # A trained table is scaled as tokens are: Adam's steps, all of one size, then move both alike.
            states = states + (rows * scale if self.scheme == "learned" else rows)
        return self.dropout(states)


_rotation = lru_cache(maxsize=64)(rotation)


class RelativePositions(nn.Module):
    """What the scheme does within self-attention: turn queries and keys (RoPE), or add to scores (ALiBi, T5)."""

    def __init__(self, config: TransformerConfig, *, bidirectional: bool) -> None:
        super().__init__()
        self.config = config
        self.scheme, self.heads = config.positions, config.heads
        self.key_width = config.width // config.heads if config.key_width is None else config.key_width
        if self.scheme == "t5":
            self.relative = RelativeBias(config.heads, bidirectional=bidirectional)

    def turn(self, length: int, device: torch.device) -> Rotation | None:
        """The rotation of the positions up to `length`."""
        if self.scheme != "rope":
            return None
        made = _rotation(length, self.key_width)
        return Rotation(made.cos.to(device), made.sin.to(device), made.layout)

    def bias(self, queries: int, keys: int, device: torch.device) -> Float[Tensor, "1 head query key"] | None:
        """What is added to the scores; where they are made tile by tile and no gradient is asked for, by offset."""
        if self.scheme not in {"alibi", "t5"}:
            return None
        chosen = self.config._attn_implementation  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if chosen in _BY_PAIR or torch.is_grad_enabled():
            if self.scheme == "alibi":
                return alibi_bias(self.heads, queries, keys).to(device)[None]
            return self.relative(queries, keys)[None]
        if self.scheme == "alibi":
            by_offset = alibi_by_offset(self.heads, queries, keys).to(device)
        else:
            by_offset = self.relative.by_offset(queries, keys)
        return OffsetBias(by_offset[None], queries)


_LEVELS = 2**16


class Dropout(nn.Module):
    """Zeros at random, and what stays divided by the share that stays, so that the mean stays (Hinton et al. 2012)."""

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
        words = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        drawn = words.view(torch.int16)[: states.numel()].view(states.shape)
        stays = drawn >= dropped - _LEVELS // 2
        return states * stays * (_LEVELS / (_LEVELS - dropped))

    def extra_repr(self) -> str:
        """How `print` shows the module: by its rate."""
        return f"rate={self.rate}"
