"""Small random models of every kind that heads are taken out of."""

import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from attnscope.explanation.study import Study
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope.read.encoded import texts_of, windows_of

TEXTS = [
    "The tide comes in twice a day, and twice a day it goes out again.",
    "A lighthouse keeper writes down the weather every morning.",
    "The clockmaker opened the case and looked at the wheels.",
    "Bread needs flour, water, salt and time.",
    "She wrote a letter to her brother, who lived in the harbour town.",
    "It rained all day, and the streets were empty.",
]
SIZES = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 32, "vocab_size": 50}
MODELS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    "albert": lambda: AlbertForMaskedLM(AlbertConfig(**SIZES, embedding_size=8)),
    "deberta": lambda: DebertaV2ForMaskedLM(
        DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["c2p", "p2c"])
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=4, n_layer=3, vocab_size=50, n_positions=32)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=4)),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **SIZES, num_key_value_heads=2, head_dim=4, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0
        )
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(d_model=16, d_kv=4, num_heads=4, num_layers=3, d_ff=32, vocab_size=50, decoder_start_token_id=0)
    ),
    "bart": lambda: BartForConditionalGeneration(
        BartConfig(
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            vocab_size=50,
            max_position_embeddings=32,
            pad_token_id=1,
            eos_token_id=2,
        )
    ),
    "ours": lambda: EncoderForMaskedLM(EncoderConfig(vocab_size=50, width=16, heads=4, layers=3, feed_forward=32)),
}


def build(name):
    """A model with weights large enough for heads to matter."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def inputs_of(model):
    """Two texts, the second padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (2, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, 50, (2, 7), generator=generator)
    return inputs


def one_text(loaded, text):
    """A model that is to read one text."""
    windows = list(windows_of(texts_of([text]), loaded.tokenizer, length=128))
    return Study(loaded.model, windows, name=loaded.name, loaded=loaded)
