"""What the tiny configuration of a family needs beside being smaller, and what is odd about its eager weights."""

from tests.capture.every_family.settings_by_modality import SETTINGS_BY_MODALITY

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 8}
_PALE = {"rope_parameters": {"mrope_section": [4, 2, 2]}}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}

SETTINGS = SETTINGS_BY_MODALITY | {
    "aria": {"projector_patch_to_query_dict": {"1225": 128, "4900": 256}},
    "bailing_hybrid": {"num_experts": 16, "n_group": 1},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        "use_cache": False,
        "encoder_config": {"hidden_size_global": 64},
        "decoder_config": {"hidden_size_global": 64},
    },
    "bros": {"dim_bbox_projection": 16, "dim_bbox_sinusoid_emb_1d": 4, "dim_bbox_sinusoid_emb_2d": 32},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "cohere_compass": {
        "text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    },
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "cosmos3_edge": {"text_config": _PALE},
    "cosmos3_edge_text": _PALE,
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96},
    },
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dia": {"decoder_config": {"cross_hidden_size": 64, "cross_head_dim": 16}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "sliding_window": 8},
    "dots3_note": {"vision_config": {"adapter_out_dim": 64}, "audio_config": {"adapter_out_dim": 64}},
    "emu3": {"vocabulary_map": {"<image>": 5}, "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1]}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"mrope_section": [3, 3, 2]}}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 128},
    "fast_vlm": {"vision_config": {"architecture": "resnet10t", "model_args": None}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "num_decoder_layers": 1},
    "gemma3n": {"vision_config": {"architecture": "resnet10t"}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "4/8"},
    "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "hunyuan_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 2, 2, 2]}}},
    "hunyuan_vl_text": {"rope_parameters": {"mrope_section": [2, 2, 2, 2]}},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 4,
    },
    "kimi_linear": {"num_experts_per_token": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 4]},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16, "input_size": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"channel_shrink_ratio": 4, "hidden_size": 96},
    "longcat_flash": {
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 32,
        "ffn_hidden_size": 64,
        "moe_topk": 2,
    },
    "lxmert": {"l_layers": 2, "x_layers": 1, "r_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "perceiver": {
        "num_latents": 8,
        "d_latents": 32,
        "d_model": 32,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 4,
        "qk_channels": 32,
        "v_channels": 32,
    },
    "perception_lm": {
        "vision_config": {"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 192, "depth": 2}}
    },
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": False,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "num_hashes": 1,
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
        "num_buckets": 4,
    },
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "squeezebert": {"embedding_size": 64},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "mamba_headdim": 16,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "kv_channels": 16,
        "num_query_groups": 4,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "hybrid_layer_ids": [1, 2],
    },
}

_SINKS = (
    "eager attention returns weights before the learned sinks take their part; attnscope's are those that mix values"
)
_MEAN = "eager attention returns the mean over heads for each; attnscope's are those of each head"
_FORBIDDEN = "patches without bytes attend to nothing; eager attention gives them uniform weights, attnscope none"
NOTES = {"blt": _FORBIDDEN, "granite_swa": _SINKS, "granitemoe_swa": _SINKS, "wavlm": _MEAN}

# What the default configuration of a family must be given, as transformers refuses it without.
_ALL_SHARED = {
    "text_config": {
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_hidden_layers": 2,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }
}
DEFAULTS = dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), _ALL_SHARED)

# Why a family is not tried, where the first error does not say it.
REASONS = {"dinat": "transformers asks natten for natten2dqkrpb, which natten 0.21 no longer has"}
