"""The Transformer encoder-decoder (Vaswani et al. 2017), and its encoder alone (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from attnscope.models.configs import EncoderConfig, TransformerConfig
from attnscope.models.layers import AddPositions, FeedForward, RegisteredAttention, RelativePositions, Residual
from attnscope.models.loss import mean_cross_entropy
from attnscope.models.translator import Decoded, TiedModel, Translator, reject_unused


class EncoderLayer(nn.Module):
    """Self-attention over the whole text, then each token on its own."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.self_attention = RegisteredAttention(config, layer)
        self.around_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, states: Tensor, mask: Any, bias: Tensor | None, turn: Any) -> tuple[Tensor, Tensor | None]:
        """States of the next layer, and the weights if they were made."""
        made, weights = self.self_attention(self.around_attention.enter(states), mask=mask, bias=bias, rotation=turn)
        states = self.around_attention.leave(states, made)
        made = self.feed_forward(self.around_feed_forward.enter(states))
        return self.around_feed_forward.leave(states, made), weights


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with positions before and a norm behind them."""

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
        return BaseModelOutput(self.norm(states), attentions=_made(weights))  # pyright: ignore[reportArgumentType]


class DecoderLayer(nn.Module):
    """Self-attention on what was said, attention on the source, then each token on its own."""

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
        made, own = self.self_attention(
            self.around_self.enter(states),
            mask=masks[0],
            bias=bias,
            rotation=turn,
            start=start,
            cache=None if cache is None else cache.self_attention_cache,
            layer=self.layer,
        )
        states = self.around_self.leave(states, made)
        made, cross = self.cross_attention(
            self.around_cross.enter(states),
            key_value_states=source,
            mask=masks[1],
            cache=None if cache is None else cache.cross_attention_cache,
            layer=self.layer,
        )
        states = self.around_cross.leave(states, made)
        made = self.feed_forward(self.around_feed_forward.enter(states))
        return self.around_feed_forward.leave(states, made), own, cross


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
        """What the output layer reads, and the weights on the source and on the target."""
        start = 0 if cache is None else int(cache.get_seq_length())
        states = self.add_positions(self.embedding(tokens), start)
        queries, keys = tokens.shape[1], start + tokens.shape[1]
        own_mask = create_causal_mask(
            config=self.config, inputs_embeds=states, attention_mask=None, past_key_values=cache
        )
        source_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=states, attention_mask=attention_mask, encoder_hidden_states=source
        )
        bias = self.relative.bias(queries, keys, states.device)
        turn = self.relative.turn(keys, states.device)
        own: list[Tensor | None] = []
        cross: list[Tensor | None] = []
        for layer in self.layers:
            states, on_target, on_source = layer(states, source, (own_mask, source_mask), bias, turn, start, cache)
            own.append(on_target)
            cross.append(on_source)
        return Decoded(self.norm(states), _made(cross), _made(own))


def _made(weights: list[Tensor | None]) -> tuple[Tensor, ...] | None:
    """None where attention is fused and never makes its weights."""
    return tuple(layer for layer in weights if layer is not None) or None


class ByRegistry(PreTrainedModel):
    """Attention goes through transformers' registry, so that it can be chosen, and captured as any other model's."""

    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True


class TransformerForConditionalGeneration(ByRegistry, Translator):
    r"""Translation with attention alone: self-attention in the encoder, causal and cross-attention in the decoder.

    References
    ----------
    Vaswani et al. (2017), NeurIPS; Xiong et al. (2020), ICML, for normalising before the sublayers.
    """

    config_class = TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, config.width, TransformerEncoder, TransformerDecoder)


class EncoderForMaskedLM(ByRegistry, TiedModel):
    """A masked language model: every token attends both ways, and masked ones are predicted."""

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

        `num_items_in_batch`, which transformers' Trainer gives, is their number where this batch is a part of a larger
        one.
        """
        reject_unused(others)
        encoded = self.encoder(input_ids, attention_mask)
        logits = self.lm_head(encoded[0])
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, attentions=encoded.attentions)

    def hidden(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"],
        labels: Int[Tensor, "batch token"],  # noqa: ARG002 the other models' decoders read them
    ) -> Float[Tensor, "batch token width"]:
        """States after the last layer."""
        return self.encoder(input_ids, attention_mask)[0]
