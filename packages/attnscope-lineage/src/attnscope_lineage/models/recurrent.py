"""The RNN encoder-decoder, with one fixed vector or with attention (Cho et al. 2014, Bahdanau et al. 2015)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnscope.models.common import check_padding, reject_unused
from attnscope.models.transformer import Dropout, written_out
from attnscope_lineage.models.configs import RecurrentConfig
from attnscope_lineage.models.scores import AdditiveScore, BilinearScore, DotScore, Score, look, scaled_dot_score
from attnscope_lineage.models.translator import Decoded, Translator


def make_score(config: RecurrentConfig) -> Score | None:
    """The score function of a configuration; None for the fixed vector."""
    widths = config.decoder_width, 2 * config.encoder_width
    if config.attention == "additive":
        return AdditiveScore(*widths, config.attention_width or config.decoder_width)
    of_products = {"dot": DotScore, "scaled_dot": scaled_dot_score, "bilinear": BilinearScore}
    return of_products[config.attention](*widths) if config.attention in of_products else None


class RecurrentEncoder(nn.Module):
    r"""Annotations :math:`h_i`: the states of a bidirectional recurrent network over the source."""

    main_input_name = "input_ids"

    def __init__(self, config: RecurrentConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        network = nn.GRU if config.cell == "gru" else nn.LSTM
        self.network = network(
            config.embedding_width,
            config.encoder_width,
            config.encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.encoder_layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        **others: Any,
    ) -> BaseModelOutput:
        """Annotations, ``(batch, source, 2 * encoder_width)``; zeros at padding, which must follow the text."""
        reject_unused(others)
        length = input_ids.shape[1]
        valid = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).cpu()
        check_padding(valid, "attention_mask")  # a packed sequence has only lengths
        lengths = valid.sum(1)
        embedded = self.dropout(self.embedding(input_ids))
        if embedded.device.type == "cpu":
            states = self._padded(embedded, lengths)
        else:
            packed = pack_padded_sequence(embedded, lengths.clamp_min(1), batch_first=True, enforce_sorted=False)
            states = pad_packed_sequence(self.network(packed)[0], batch_first=True, total_length=length)[0]
        return BaseModelOutput(last_hidden_state=self.dropout(states))  # pyright: ignore[reportArgumentType]

    def _padded(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The same without packing, which takes long on a CPU: the backward direction reads each text turned round."""
        position = torch.arange(states.shape[1])
        valid = position < lengths[:, None]
        turned = torch.where(valid, lengths[:, None] - 1 - position, position)[..., None]
        for layer in range(self.network.num_layers):
            if layer:
                states = nn.functional.dropout(states, self.network.dropout, self.training)
            forward, backward = self.network.all_weights[2 * layer : 2 * layer + 2]
            ahead, _ = all_states(states, forward)
            back, _ = all_states(states.gather(1, turned.expand_as(states)), backward)
            states = torch.cat([ahead, back.gather(1, turned.expand_as(back))], -1)
        return states * valid[..., None]


def all_states(
    inputs: Float[Tensor, "batch step input"], weights: Sequence[Tensor], state: tuple[Tensor, ...] = ()
) -> tuple[Float[Tensor, "batch step state"], tuple[Tensor, ...]]:
    """The outputs of a GRU or LSTM with these weights at all steps, as one call, and its last state."""
    width, options = weights[1].shape[1], (True, 1, 0.0, torch.is_grad_enabled(), False, True)
    is_gru = len(weights[1]) == 3 * width
    state = state or (inputs.new_zeros(len(inputs), width),) * (1 if is_gru else 2)
    first = [part[None] for part in state]
    call: Any = torch.gru if is_gru else torch.lstm
    outputs, *last = call(inputs, first[0] if is_gru else first, [*weights], *options)
    return outputs, tuple(part[0] for part in last)


class RecurrentCache:
    """The decoder between two steps: its state, the last context, and the encoded source."""

    is_compileable = False
    is_linear = (True,)  # generate cuts off no tokens that it has

    def __init__(self) -> None:
        self.steps = 0
        self.state: tuple[Tensor, ...] = ()
        self.context = torch.empty(0)
        self.prepared: Tensor | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 transformers' signature
        """Number of target tokens so far."""
        return self.steps

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the chosen beams; the encoded source is the same for all beams of a sentence."""
        self.state = tuple(part.index_select(0, beam_idx) for part in self.state)
        self.context = self.context.index_select(0, beam_idx)


class SourceAttention(nn.Module):
    """Every step's attention as one call on transformers' registry, with one head, so that it can be watched."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.is_causal = False

    @property
    def is_called(self) -> bool:
        """Whether another attention than that of the steps is set."""
        return self.config._attn_implementation not in {None, "eager"}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def forward(
        self,
        hidden_states: Float[Tensor, "batch target state"],
        key_value_states: Float[Tensor, "batch source annotation"],
        score: Score,
        valid: Bool[Tensor, "batch source"],
    ) -> Float[Tensor, "batch target annotation"]:
        """Contexts of all steps."""
        chosen: Any = self.config._attn_implementation  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        terms = score.terms(hidden_states, key_value_states)
        mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=valid,
            encoder_hidden_states=key_value_states,
        )
        output, _ = ALL_ATTENTION_FUNCTIONS.get_interface(chosen, written_out)(
            self,
            terms.query.unsqueeze(1),
            terms.key.unsqueeze(1),
            key_value_states.unsqueeze(1),
            mask,
            dropout=0.0,
            scaling=terms.scale,
            position_bias=None if terms.bias is None else terms.bias.unsqueeze(1),
        )
        return output.squeeze(2)


class RecurrentDecoder(nn.Module):
    r"""One step: :math:`s_t = \mathrm{RNN}(s_{t-1}, [y_{t-1}; c_{t-1}])`, :math:`c_t = \sum_i \alpha_{t,i} h_i`."""

    def __init__(self, config: RecurrentConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        annotation = 2 * config.encoder_width
        self.embedding = embedding
        self.score = make_score(config)
        if self.score is not None:
            self.attention = SourceAttention(config)
        self.first_state = nn.Linear(annotation, config.decoder_width)
        cell = nn.GRUCell if config.cell == "gru" else nn.LSTMCell
        self.cell = cell(config.embedding_width + annotation, config.decoder_width)
        self.readout = nn.Linear(config.decoder_width + annotation + config.embedding_width, config.embedding_width)
        self.dropout = Dropout(config.dropout)

    def start(self, annotations: Tensor, valid: Tensor, cache: RecurrentCache) -> None:
        """Fill the cache before the first step: c_0 is the fixed vector, s_0 is computed from it."""
        cache.context = fixed_vector(annotations, valid)
        state = torch.tanh(self.first_state(cache.context))
        cache.state = (state,) if isinstance(self.cell, nn.GRUCell) else (state, torch.zeros_like(state))
        cache.prepared = None if self.score is None else self.score.prepare(annotations)

    def forward(
        self,
        tokens: Int[Tensor, "batch target"],
        annotations: Float[Tensor, "batch source annotation"],
        attention_mask: Int[Tensor, "batch source"],
        cache: RecurrentCache | None = None,
    ) -> Decoded:
        """The input of the output layer at every step, and the weights (None for the fixed vector)."""
        valid, cache = attention_mask.bool(), cache or RecurrentCache()
        if not cache.steps:
            self.start(annotations, valid, cache)
        embedded = self.dropout(self.embedding(tokens))
        state, context = cache.state, cache.context
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        if self.score is None:  # the same context: all steps as one call
            read = torch.cat([embedded, context.unsqueeze(1).expand(-1, embedded.shape[1], -1)], -1)
            outputs, state = all_states(read, [*self.cell.parameters()], state)
            states, contexts = [*outputs.unbind(1)], [context] * tokens.shape[1]
        for previous in embedded.unbind(1)[len(states) :]:
            read = torch.cat([previous, context], -1)
            state = (self.cell(read, state[0]),) if isinstance(self.cell, nn.GRUCell) else self.cell(read, state)
            if self.score is not None and cache.prepared is not None:
                looked, share = look(self.score, state[0].unsqueeze(1), cache.prepared, annotations, valid)
                context = looked.squeeze(1)
                weights.append(share)
            states.append(state[0])
            contexts.append(context)
        cache.state, cache.context, cache.steps = state, context, cache.steps + tokens.shape[1]
        spoken, mixed = torch.stack(states, 1), torch.stack(contexts, 1)
        if self.score is not None and self.attention.is_called:
            mixed = self.attention(spoken, key_value_states=annotations, score=self.score, valid=valid)
        together = torch.cat([spoken, mixed, embedded], -1)
        shares = (torch.cat(weights, 1).unsqueeze(1),) if weights else None
        return Decoded(self.dropout(torch.tanh(self.readout(together))), shares)


def fixed_vector(
    annotations: Float[Tensor, "batch source annotation"], valid: Bool[Tensor, "batch source"]
) -> Float[Tensor, "batch annotation"]:
    """One vector for the whole source: the last state of each direction, forward at the end, backward at the start.

    Parameters
    ----------
    annotations
        States of the encoder: the first half of the last dimension is of the forward direction.
    valid
        True at tokens, False at the padding that follows them.

    References
    ----------
    Cho et al. (2014), EMNLP.
    """
    half = annotations.shape[-1] // 2
    last = (valid.sum(1) - 1).clamp_min(0)
    rows = torch.arange(len(annotations), device=annotations.device)
    return torch.cat([annotations[rows, last, :half], annotations[:, 0, half:]], -1)


class RecurrentForConditionalGeneration(Translator):
    r"""Translation with recurrent networks; `config.attention` sets the decoder's view of the source.

    With ``none`` it is one fixed vector c; with a score function, a context :math:`c_t` at each step, with the weights
    as ``cross_attentions``: one layer with one head, ``(batch, 1, target, source)``, where row t predicts token t. For
    captures it attends through transformers' registry: see `SourceAttention`.

    Parameters
    ----------
    config
        Sizes of the model, its cell and its attention.

    References
    ----------
    Cho et al. (2014), EMNLP; Bahdanau, Cho and Bengio (2015), ICLR; Luong, Pham and Manning (2015), EMNLP.
    """

    config_class = RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config, config.embedding_width, RecurrentEncoder, RecurrentDecoder)

    def _prepare_cache_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any
    ) -> None:
        """States replace keys and values."""
        if generation_config.use_cache is not False:
            arguments = inspect.signature(vars(GenerationMixin)["prepare_inputs_for_generation"]).parameters
            model_kwargs["cache" if "cache" in arguments else "past_key_values"] = RecurrentCache()
