"""The Transformer encoder-decoder (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from attnscope.models.configs import TransformerConfig
from attnscope.models.transformer import (
    ByRegistry,
    FeedForward,
    RegisteredAttention,
    Residual,
    Stack,
    TransformerEncoder,
    weights_or_none,
)
from attnscope_lineage.models.translator import Decoded, Translator


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention on the source, then the feed-forward part."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.self_attention = RegisteredAttention(config, layer, is_causal=True)
        self.around_self = Residual(config)
        self.cross_attention = RegisteredAttention(config, layer)
        self.around_cross = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)
        self.layer = layer

    def forward(
        self,
        states: Tensor,
        source: Tensor,
        masks: tuple[Any, Any],
        bias: Tensor | None,
        turn: Any,
        start: int,
        cache: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """States of the next layer, weights on the target and on the source."""
        output, on_target = self.self_attention(
            self.around_self.enter(states),
            mask=masks[0],
            bias=bias,
            rotation=turn,
            start=start,
            cache=None if cache is None else cache.self_attention_cache,
            layer=self.layer,
        )
        states = self.around_self.leave(states, output)
        output, on_source = self.cross_attention(
            self.around_cross.enter(states),
            key_value_states=source,
            mask=masks[1],
            cache=None if cache is None else cache.cross_attention_cache,
            layer=self.layer,
        )
        states = self.around_cross.leave(states, output)
        output = self.feed_forward(self.around_feed_forward.enter(states))
        return self.around_feed_forward.leave(states, output), on_target, on_source


class TransformerDecoder(Stack):
    """All layers over the target so far."""

    def __init__(self, config: TransformerConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding, DecoderLayer, config.decoder_layers, both_ways=False)

    def forward(
        self,
        tokens: Int[Tensor, "batch target"],
        source: Float[Tensor, "batch source width"],
        attention_mask: Int[Tensor, "batch source"],
        cache: EncoderDecoderCache | None = None,
    ) -> Decoded:
        """The output layer's input, and the weights on the source and on the target."""
        start = 0 if cache is None else int(cache.get_seq_length())
        states = self.add_positions(self.embedding(tokens), start)
        queries, keys = tokens.shape[1], start + tokens.shape[1]
        own_mask = create_causal_mask(self.config, states, None, cache)
        source_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=states, attention_mask=attention_mask, encoder_hidden_states=source
        )
        bias = self.relative.bias(queries, keys, states.device)
        turn = self.relative.turn(keys, states.device)
        target_weights: list[Tensor | None] = []
        source_weights: list[Tensor | None] = []
        for layer in self.layers:
            states, on_target, on_source = layer(states, source, (own_mask, source_mask), bias, turn, start, cache)
            target_weights.append(on_target)
            source_weights.append(on_source)
        return Decoded(self.norm(states), weights_or_none(source_weights), weights_or_none(target_weights))


class TransformerForConditionalGeneration(ByRegistry, Translator):
    r"""Translation with attention only: self-attention in the encoder, causal and cross-attention in the decoder.

    Parameters
    ----------
    config
        Sizes of the model, positions and norms.

    References
    ----------
    Vaswani et al. (2017), NeurIPS; Xiong et al. (2020), ICML, for normalising before the sublayers.
    """

    config_class = TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, config.width, TransformerEncoder, TransformerDecoder)
