"""Common parts of the translators, and support for `generate`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from attnscope.models.common import IGNORED, TiedModel, mean_cross_entropy, reject_unused


class Decoded(NamedTuple):
    """The output of a decoder."""

    hidden: Tensor  # the output layer's input, ``(batch, target, width)``
    # weights of each layer on the source, ``(batch, head, target, source)``, and on the target, if stored
    source_weights: tuple[Tensor, ...] | None = None
    target_weights: tuple[Tensor, ...] | None = None


class Translator(TiedModel, GenerationMixin):
    """An encoder, a decoder that attends to it, and one embedding table for source, target and output."""

    base_model_prefix = "model"
    _tied_weights_keys = {  # noqa: RUF012 transformers' form
        "encoder.embedding.weight": "embedding.weight",
        "decoder.embedding.weight": "embedding.weight",
        "lm_head.weight": "embedding.weight",
    }
    encoder: nn.Module
    decoder: nn.Module  # over (tokens, states of the encoder, attention_mask, cache): tokens that the cache lacks

    def __init__(self, config: Any, width: int, encoder: type[nn.Module], decoder: type[nn.Module]) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.encoder = encoder(config, self.embedding)
        self.decoder = decoder(config, self.embedding)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"] | None = None,
        attention_mask: Int[Tensor, "batch source"] | None = None,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Any = None,
        labels: Int[Tensor, "batch target"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the next target token at every position, and the mean loss in nats if there are labels.

        Parameters
        ----------
        input_ids, attention_mask
            The source; the mask is 0 at the padding at its end. Without `input_ids`, `encoder_outputs` is read.
        decoder_input_ids
            The target up to each position; by default made from `labels`.
        cache
            What the decoder has read so far, in `generate`. Before 5.24, transformers calls it `past_key_values`.
        labels
            The target tokens; -100 at padding.
        num_items_in_batch
            Number of labels in a larger batch that this one is part of, from transformers' Trainer.

        Returns
        -------
        transformers.modeling_outputs.Seq2SeqLMOutput
            ``logits`` ``(batch, target, vocabulary)``; the weights of each layer ``(batch, head, query, key)``, where
            the attention stores them.

        Raises
        ------
        AttnscopeError
            If padding precedes a token, or an argument has no effect in these models.
        """
        reject_unused(others)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        states: Any = encoder_outputs[0]  # pyright: ignore[reportOptionalSubscript]
        if attention_mask is None:
            attention_mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.decoder_inputs(labels)
        read = past_key_values if cache is None else cache
        decoded: Decoded = self.decoder(decoder_input_ids, states, attention_mask, read)
        logits = self.lm_head(decoded.hidden)
        return Seq2SeqLMOutput(
            loss=None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            cross_attentions=decoded.source_weights,
            decoder_attentions=decoded.target_weights,
            encoder_last_hidden_state=states,
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )

    def decoder_inputs(self, labels: Int[Tensor, "batch target"]) -> Int[Tensor, "batch target"]:
        """The decoder's input under teacher forcing: each token one step later, a start token first."""
        before = torch.cat([labels.new_full((len(labels), 1), self.config.decoder_start_token_id), labels[:, :-1]], 1)
        return before.masked_fill(before == IGNORED, self.config.pad_token_id)

    prepare_decoder_input_ids_from_labels = decoder_inputs  # the name for transformers' data collator
