"""Small encoder-decoders whose attention is known or at random, and a tokenizer that cuts words in two."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnscope.kernels.reference import attend
from attnscope_lineage.models.configs import RecurrentConfig
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration

MARKS = ["<pad>", "<s>", "</s>", "<unk>"]


def small_tokenizer():
    """Each character is a piece, words are marked as sentencepiece does; a sentence ends with </s>."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyzäöüß.,", *"彼は本を読む"]
    raw = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate([*MARKS, *letters, "▁a", "▁b", "th"])},
            merges=[("▁", "a"), ("▁", "b"), ("t", "h")],
            unk_token="<unk>",
        )
    )
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def small_model(kind, vocabulary=64):
    torch.manual_seed(0)
    common = {"vocab_size": vocabulary, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    if kind == "t5":
        return T5ForConditionalGeneration(
            T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, **common)
        ).eval()
    config, model = {"bart": (BartConfig, BartForConditionalGeneration), "marian": (MarianConfig, MarianMTModel)}[kind]
    sizes = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
        "init_std": 1.0,
        "forced_eos_token_id": 2,
    }
    return model(config(**sizes, **common)).eval()


def small_recurrent(attention):
    """One of our own recurrent models, sharp enough to tell tokens apart."""
    torch.manual_seed(0)
    sizes = {"embedding_width": 8, "encoder_width": 8, "decoder_width": 16}
    model = RecurrentForConditionalGeneration(RecurrentConfig(vocab_size=64, attention=attention, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model.eval()


def written_out(module, query, key, value, mask, scaling, position_bias, **_):
    """The attention of `Reordering` where nobody watches."""
    output, weights = attend(query, key, value, mask, scaling, bias=position_bias)
    return output.transpose(1, 2), weights


class PlantedAttention(torch.nn.Module):
    """Gives the weights that it is told, by scores that are their logarithms."""

    def __init__(self, config):
        super().__init__()
        self.config, self.is_causal = config, False

    def forward(self, weights, key_value_states):
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, written_out)
        batch, heads, n, m = weights.shape
        values = key_value_states[:, None, :, None].expand(batch, heads, m, 1)
        nothing = weights.new_zeros(batch, heads, max(n, m), 1)
        given = {"scaling": 1.0, "position_bias": weights.log()}
        return attention(self, nothing[:, :, :n], nothing[:, :, :m], values, None, **given)


class Reordering(PreTrainedModel):
    """Looks from target token t at source token m-2-t (the sentence read backwards); from </s> at </s>.

    Layer 0, head 1 does so; the other heads look at </s> alone. It has the interface of the lineage's models.
    """

    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig(is_encoder_decoder=True))
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.layers = torch.nn.ModuleList(PlantedAttention(self.config) for _ in range(2))

    def planted(self, input_ids, attention_mask, n):
        """Weights, ``(layer, text, head, n, m)``."""
        batch, m = input_ids.shape
        weights = torch.zeros(2, batch, 2, n, m)
        for i in range(batch):
            end = int(attention_mask[i].sum()) - 1
            weights[:, i, :, :, end] = 1
            for t in range(min(n, end)):
                weights[0, i, 1, t] = 0
                weights[0, i, 1, t, end - 1 - t] = 1
        return weights

    def forward(self, input_ids, attention_mask, labels=None):
        planted = self.planted(input_ids, attention_mask, labels.shape[1])
        looked = [
            layer(weights, key_value_states=input_ids.float())
            for layer, weights in zip(self.layers, planted, strict=True)
        ]
        return Seq2SeqLMOutput(
            logits=sum(output for output, _ in looked).flatten(2),
            cross_attentions=tuple(weights for _, weights in looked),
        )


class Blind(Reordering):
    """Does not look at the source."""

    def __init__(self):
        super().__init__()
        del self.layers

    def forward(self, input_ids, attention_mask, labels=None):
        return Seq2SeqLMOutput(logits=torch.zeros(*labels.shape, 3))
