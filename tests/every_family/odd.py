"""What the tiny configuration of a family needs beside being smaller, and what is odd about its eager weights."""

_RESNET = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1],
        "embedding_size": 16,
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    },
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 8}
_PALE = {"rope_parameters": {"mrope_section": [4, 2, 2]}}

SETTINGS = {
    "autoformer": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]},
    "informer": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]},
    "time_series_transformer": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 128},
    "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "bros": {"dim_bbox_projection": 16, "dim_bbox_sinusoid_emb_1d": 4, "dim_bbox_sinusoid_emb_2d": 16},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {
        "vocabulary_map": {"<image>": 5},
        "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1]},
    },
    "owlvit": {"text_config": {"max_position_embeddings": 64}},
    "owlv2": {"text_config": {"max_position_embeddings": 64}},
    "blt": {"encoder_hash_byte_group_vocab": 500},
    "cosmos3_edge": {"text_config": _PALE},
    "cosmos3_edge_text": _PALE,
    "dab-detr": _RESNET,
    "detr": _RESNET,
    "conditional_detr": _RESNET,
    "deformable_detr": _RESNET,
    "table-transformer": _RESNET,
    "deepseek_v2": {"num_experts_per_tok": 2},
    "donut-swin": {"embed_dim": 24},
    "maskformer-swin": {"embed_dim": 24},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "esmc": {"num_key_value_heads": 4},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "num_decoder_layers": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "kimi_linear": {"num_experts_per_token": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 4]},
    "lilt": {"channel_shrink_ratio": 4, "hidden_size": 96},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16, "input_size": 32},
    "longcat_flash": {
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 32,
        "ffn_hidden_size": 64,
        "moe_topk": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "perceiver": {
        "num_latents": 8,
        "d_latents": 32,
        "d_model": 32,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 4,
        "qk_channels": 32,
        "v_channels": 32,
    },
    "reformer": {
        "is_decoder": False,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "num_hashes": 1,
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
        "num_buckets": 4,
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 4,
    },
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "squeezebert": {"embedding_size": 64},
}

_SINKS = "its eager attention returns weights before its learned sinks take their part; ours are those that mix values"
NOTES = {"granite_swa": _SINKS, "granitemoe_swa": _SINKS}
