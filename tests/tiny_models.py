"""Tiny random models of many families, and inputs for them."""

import torch
import transformers as T

from attnscope.bundled import MODEL

_ENCODER = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
}
_DECODER = {
    **_ENCODER,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 60,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
_SMALL_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 32}

MAKERS = {
    "bert": lambda: T.BertForMaskedLM(T.BertConfig(**_ENCODER)),
    "roberta": lambda: T.RobertaForMaskedLM(T.RobertaConfig(**{**_ENCODER, "max_position_embeddings": 66})),
    "albert": lambda: T.AlbertForMaskedLM(T.AlbertConfig(**_ENCODER, embedding_size=16)),
    "distilbert": lambda: T.DistilBertForMaskedLM(
        T.DistilBertConfig(dim=32, n_heads=4, n_layers=2, hidden_dim=48, vocab_size=60, max_position_embeddings=64)
    ),
    "electra": lambda: T.ElectraForMaskedLM(T.ElectraConfig(**_ENCODER, embedding_size=16)),
    "modernbert": lambda: T.ModernBertForMaskedLM(
        T.ModernBertConfig(
            **{**_ENCODER, "num_hidden_layers": 4},
            local_attention=8,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        )
    ),
    "gpt2": lambda: T.GPT2LMHeadModel(
        T.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=60, n_positions=64, bos_token_id=1, eos_token_id=2)
    ),
    "gpt_neox": lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**_ENCODER)),
    "opt": lambda: T.OPTForCausalLM(
        T.OPTConfig(
            hidden_size=32,
            num_attention_heads=4,
            num_hidden_layers=2,
            ffn_dim=48,
            vocab_size=60,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        )
    ),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**_DECODER)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**_DECODER, sliding_window=8)),
    "gemma2": lambda: T.Gemma2ForCausalLM(
        T.Gemma2Config(**_DECODER, sliding_window=8, attn_logit_softcapping=2.0, query_pre_attn_scalar=8)
    ),
    "gpt_oss": lambda: T.GptOssForCausalLM(
        T.GptOssConfig(
            **_DECODER, sliding_window=8, num_local_experts=2, num_experts_per_tok=1, rope_parameters=_SMALL_YARN
        )
    ),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**_DECODER)),
    "t5": lambda: T.T5ForConditionalGeneration(
        T.T5Config(
            d_model=32,
            d_kv=8,
            num_heads=4,
            num_layers=2,
            num_decoder_layers=2,
            d_ff=48,
            vocab_size=60,
            decoder_start_token_id=0,
        )
    ),
    "bart": lambda: T.BartForConditionalGeneration(T.BartConfig(**_SEQ2SEQ, max_position_embeddings=64)),
    "marian": lambda: T.MarianMTModel(T.MarianConfig(**_SEQ2SEQ, max_position_embeddings=64)),
    "whisper": lambda: T.WhisperForConditionalGeneration(
        T.WhisperConfig(**_SEQ2SEQ, num_mel_bins=8, max_source_positions=20, max_target_positions=30)
    ),
    "deberta": lambda: T.DebertaForMaskedLM(
        T.DebertaConfig(**_ENCODER, relative_attention=True, position_biased_input=False, pos_att_type=["c2p", "p2c"])
    ),
    "deberta_v2": lambda: T.DebertaV2ForMaskedLM(
        T.DebertaV2Config(
            **_ENCODER,
            relative_attention=True,
            position_biased_input=False,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            max_relative_positions=32,
            share_att_key=True,
            norm_rel_ebd="layer_norm",
        )
    ),
    "vit": lambda: T.ViTModel(
        T.ViTConfig(
            hidden_size=32,
            num_attention_heads=4,
            num_hidden_layers=2,
            intermediate_size=48,
            image_size=16,
            patch_size=4,
        )
    ),
}
UNREGISTERED = {
    "bloom": lambda: T.BloomForCausalLM(
        T.BloomConfig(hidden_size=32, n_head=4, n_layer=2, vocab_size=60, bos_token_id=1, eos_token_id=2)
    )
}

_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_HYBRID = {name: value for name, value in _DECODER.items() if name != "head_dim"}
_LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 16}
_FALCON = {name: _ENCODER[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")}
# blocks with more than attention and one MLP, or with other sums
MIXED = {
    "bamba": lambda: T.BambaForCausalLM(T.BambaConfig(**_HYBRID, **_MAMBA, attn_layer_indices=[1])),
    "falcon_h1": lambda: T.FalconH1ForCausalLM(
        T.FalconH1Config(**_DECODER, **(_MAMBA | {"mamba_d_head": 8}), mamba_d_ssm=32)
    ),
    "granitemoehybrid": lambda: T.GraniteMoeHybridForCausalLM(
        T.GraniteMoeHybridConfig(**_HYBRID, **_MAMBA, **_EXPERTS, layer_types=["attention", "mamba"])
    ),
    "granitemoeshared": lambda: T.GraniteMoeSharedForCausalLM(T.GraniteMoeSharedConfig(**_HYBRID, **_EXPERTS)),
    "gemma4": lambda: T.Gemma4ForCausalLM(
        T.Gemma4TextConfig(
            **_DECODER,
            global_head_dim=8,
            num_global_key_value_heads=2,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            vocab_size_per_layer_input=640,
            hidden_size_per_layer_input=8,
            num_kv_shared_layers=0,
        )
    ),
    "qwen3_5": lambda: T.Qwen3_5ForCausalLM(
        T.Qwen3_5TextConfig(**_DECODER, **_LINEAR, layer_types=["full_attention", "linear_attention"])
    ),
    "jamba": lambda: T.JambaForCausalLM(
        T.JambaConfig(
            **_HYBRID,
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=1,
            num_experts_per_tok=1,
            mamba_d_state=8,
            use_mamba_kernels=False,
        )
    ),
    "lfm2": lambda: T.Lfm2ForCausalLM(
        T.Lfm2Config(**_HYBRID, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)
    ),
    "qwen3_next": lambda: T.Qwen3NextForCausalLM(
        T.Qwen3NextConfig(**_DECODER, **_LINEAR, layer_types=["linear_attention", "full_attention"], num_experts=0)
    ),
    "falcon": lambda: T.FalconForCausalLM(
        T.FalconConfig(**_FALCON, num_kv_heads=2, new_decoder_architecture=True, bias=False)
    ),
    "falcon_sequential": lambda: T.FalconForCausalLM(
        T.FalconConfig(**_FALCON, multi_query=False, parallel_attn=False, bias=False)
    ),
}
# with parallel layers, experts, norms of outputs alone, and attention in two streams
OTHERS = {
    "gptj": lambda: T.GPTJForCausalLM(
        T.GPTJConfig(n_embd=32, n_head=4, n_layer=2, vocab_size=60, rotary_dim=4, bos_token_id=1, eos_token_id=2)
    ),
    "mixtral": lambda: T.MixtralForCausalLM(T.MixtralConfig(**_DECODER, num_local_experts=4, num_experts_per_tok=2)),
    "olmo2": lambda: T.Olmo2ForCausalLM(T.Olmo2Config(**_DECODER)),
    "xlnet": lambda: T.XLNetLMHeadModel(T.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=48, vocab_size=60)),
}


def tiny(family):
    """A random model with weights large enough that no head is uniform, and no bias zero."""
    torch.manual_seed(0)
    model = (MAKERS | UNREGISTERED | MIXED | OTHERS)[family]().eval()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif "sinks" in name:
            torch.nn.init.normal_(parameter, std=1.0)
    return model


def tiny_reader(family):
    """The same with the bundled model's tokenizer, by which it reads texts."""
    model, tokenizer = tiny(family), T.AutoTokenizer.from_pretrained(MODEL)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for table in {model.get_input_embeddings(), model.get_output_embeddings()} - {None}:  # else new tokens are alike
        torch.nn.init.normal_(table.weight, std=0.3)
    return model, tokenizer


def inputs(family, *, padded):
    """Two texts; with padding, the second ends early. Returns the inputs and which tokens are real."""
    generator = torch.Generator().manual_seed(0)
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}, None
    if family == "whisper":
        return {
            "input_features": torch.randn(2, 8, 40, generator=generator),
            "decoder_input_ids": torch.randint(3, 60, (2, 12), generator=generator),
        }, None
    ids = torch.randint(3, 60, (2, 24), generator=generator)
    valid = torch.ones_like(ids, dtype=torch.bool)
    given = {"input_ids": ids}
    if padded:
        valid[1, 15:] = False
        ids[1, 15:] = 1 if family == "roberta" else 0
        given["attention_mask"] = valid.long()
    if family in {"t5", "bart", "marian"}:
        given["decoder_input_ids"] = torch.randint(3, 60, (2, 17), generator=generator)
    return given, valid
