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

_SERIES = {
    "prediction_length": 8,
    "context_length": 16,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    "feature_size": 5,
}
_QUERIES = {
    "num_query_tokens": 4,
    "image_token_index": 99,
    "image_token_id": 99,
    "vision_config": {"image_size": 56},
    "text_config": {"model_type": "opt", "word_embed_proj_dim": 64},
}
_SAM = {
    "vision_config": {"image_size": 64, "num_pos_feats": 32, "scale": 32},
    "prompt_encoder_config": {"image_size": 64, "image_embedding_size": 4},
}
_SAM2 = {
    "vision_config": {
        "backbone_config": {
            "hidden_size": 16,
            "image_size": [128, 128],
            "blocks_per_stage": [1, 1, 2, 1],
            "embed_dim_per_stage": [16, 32, 64, 128],
            "global_attention_blocks": [3],
        },
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 64,
    },
    "prompt_encoder_config": {"image_size": 128},
}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
_SAM3 = {
    "vision_config": {
        "backbone_config": {
            "image_size": 112,
            "pretrain_image_size": 56,
            "window_size": 4,
            "global_attn_indexes": [1],
        },
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 64,
    },
}
_VIDEO = {"vision_config": {"architecture": "vit_tiny_patch16_224", "model_args": {"depth": 2}}}
_EDGE = {
    "vision_config": {
        "backbone_config": {
            "architecture": "repvit_m1",
            "model_args": {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3]},
        },
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 64,
    },
    "prompt_encoder_config": {"image_size": 128},
}
SETTINGS = {
    "pi0": {"vlm_config": {"projection_dim": 64, "hidden_size": 64, "vision_config": {"projection_dim": 64}}},
    "omdet-turbo": {"text_projection_in_dim": 64},
    "edgetam_vision_model": _EDGE["vision_config"],
    "edgetam": _EDGE,
    "timm_backbone": {"backbone": "resnet10t"},
    "timm_wrapper": {"architecture": "vit_tiny_patch16_224", "model_args": {"depth": 2}},
    "perception_lm": {
        "vision_config": {
            "architecture": "vit_tiny_patch16_224",
            "model_args": {"embed_dim": 192, "depth": 2},
        }
    },
    "pe_audio_video_encoder": {"video_config": _VIDEO},
    "pe_audio_video": {"audio_video_config": {"video_config": _VIDEO}},
    "pe_video_encoder": _VIDEO,
    "pe_video": {"video_config": _VIDEO},
    "fast_vlm": {"vision_config": {"architecture": "resnet10t", "model_args": None}},
    "gemma3n": {"vision_config": {"architecture": "resnet10t"}},
    "slanext": {"post_conv_in_channels": 64},
    "uvdoc": {
        "backbone_config": {
            "depths": [1, 1, 1, 3, 3, 3],
            "out_features": [f"stage{one}" for one in range(1, 7)],
            "out_indices": list(range(1, 7)),
        }
    },
    "xcodec": {"codebook_dim": 128},
    "videoprism_vision_model": {"image_size": 36, "num_frames": 2},
    "videoprism": {"vision_config": {"image_size": 36, "num_frames": 2}},
    "superglue": {"hidden_size": 256, "gnn_layers_types": ["self", "cross"]},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "sam3_tracker": {
        "vision_config": _SAM3["vision_config"] | {"backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]},
        "prompt_encoder_config": {"image_size": 112},
    },
    "sam3_lite_text": _SAM3,
    "sam3": _SAM3,
    "qwen4_exp": {"text_config": _INDEXER},
    "pp_formulanet": {
        "vision_config": {
            "post_conv_in_channels": 64,
            "post_conv_out_channels": 64,
            "post_conv_mid_channels": 64,
            "decoder_hidden_size": 64,
            "image_size": 128,
        }
    },
    "pp_doclayout_v2": {"class_thresholds": [0.5, 0.5], "class_order": [0, 1]},
    "xcodec2": {"quantization_dim": 128},
    "neucodec": {"quantization_dim": 128},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}},
    "clvp": {
        "text_config": {"hidden_size": 128, "projection_dim": 128},
        "speech_config": {"hidden_size": 128, "projection_dim": 128},
        "decoder_config": {"hidden_size": 128},
        "projection_dim": 128,
    },
    "clap": {
        "audio_config": {
            "hidden_size": 128,
            "patch_embeds_hidden_size": 16,
            "num_attention_heads": [2, 2, 4, 4],
        }
    },
    "rf_detr": {"backbone_config": {"image_size": 112, "window_block_indexes": [0, 2]}},
    "lw_detr": {
        "projector_scale_factors": [1.0],
        "num_feature_levels": 1,
        "projector_in_channels": [64],
        "projector_out_channels": 64,
        "backbone_config": {"image_size": 128, "window_block_indices": [0, 2]},
    },
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "4/8"},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"mrope_section": [3, 3, 2]}}},
    "encodec": {"hidden_size": 128},
    "efficientloftr": {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8},
    "prompt_depth_anything": {"reassemble_hidden_size": 64, "backbone_config": {"image_size": 56}},
    "depth_anything": {"reassemble_hidden_size": 64, "backbone_config": {"image_size": 56}},
    "aria": {"projector_patch_to_query_dict": {"1225": 128, "4900": 256}},
    "bailing_hybrid": {"num_experts": 16, "n_group": 1},
    "blip-2": _QUERIES,
    "instructblip": _QUERIES,
    "instructblipvideo": _QUERIES | {"video_token_index": 99, "video_token_id": 99},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "cohere_compass": {
        "text_config": {
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        }
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96},
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "sliding_window": 8},
    "sam": _SAM,
    "sam_hq": _SAM,
    "sam2": _SAM2,
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
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
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 4,
    },
    "vits": {"flow_size": 64},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "xmod": {"default_language": "en_XX"},
    "hunyuan_vl_text": {"rope_parameters": {"mrope_section": [2, 2, 2, 2]}},
    "hunyuan_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 2, 2, 2]}}},
    "qwen4_exp_text": _INDEXER,
    "musicgen": {"audio_encoder": {"upsampling_ratios": [4, 2]}},
    "vision-text-dual-encoder": {"vision_config": {"image_size": 64, "pooler_output_size": 64}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "vjepa2": {"crop_size": 64, "frames_per_clip": 4, "pred_hidden_size": 48, "pred_num_attention_heads": 4},
    "videomt": {"image_size": 64},
    "idefics": {"vision_config": {"image_size": 56, "embed_dim": 64}},
    "kosmos-2": {"vision_config": {"image_size": 56}, "latent_query_num": 8},
    "udop": {"image_size": 64},
    "siglip": {"vision_config": {"image_size": 64}},
    "seggpt": {"image_size": [128, 64], "merge_index": 0, "intermediate_hidden_state_indices": [0, 1]},
    "dots3_note": {"vision_config": {"adapter_out_dim": 64}, "audio_config": {"adapter_out_dim": 64}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "depth_pro": {
        "patch_size": 32,
        "fusion_hidden_size": 32,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [32, 32],
        "scaled_images_feature_dims": [32, 32, 32],
        **{f"{one}_model_config": {"image_size": 32, "patch_size": 16} for one in ("image", "patch", "fov")},
    },
    "pixtral": {"image_size": 64},
    "efficientnet": {"image_size": 64, "hidden_dim": 2560},
    "sapiens2": {"image_size": 64, "num_key_value_heads_per_layer": [4, 2]},
    "tvp": {"num_frames": 2, "max_img_size": 64, "visual_prompt_size": 8},
    "autoformer": _SERIES | {"label_length": 4},
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 128},
    "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "bros": {"dim_bbox_projection": 16, "dim_bbox_sinusoid_emb_1d": 4, "dim_bbox_sinusoid_emb_2d": 32},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {
        "vocabulary_map": {"<image>": 5},
        "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1]},
    },
    "owlvit": {"text_config": {"max_position_embeddings": 64}},
    "owlv2": {"text_config": {"max_position_embeddings": 64}},
    "dia": {"decoder_config": {"cross_hidden_size": 64, "cross_head_dim": 16}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam2_hiera_det_model": {"hidden_size": 96},
    "sam2_vision_model": {"backbone_config": {"hidden_size": 96}},
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        "use_cache": False,
        "encoder_config": {"hidden_size_global": 64},
        "decoder_config": {"hidden_size_global": 64},
    },
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

# Why a family is not tried, where the first error does not say it.
_SESSION = "it reads a session of a video, which changes with each pass"
_SHARED = "it reads the keys and values of another model's layers"
REASONS = {
    "dinat": "it needs the package natten",
    "edgetam_video": _SESSION,
    "gemma4_assistant": _SHARED,
    "gemma4_unified_assistant": _SHARED,
    "higgs_audio_v2_tokenizer": "it needs the package torchaudio",
    "layoutlmv2": "it needs the package detectron2",
    "pp_ocrv5_server_det": "its default configuration has no intraclass_block_config",
    "pp_ocrv6_medium_det": "its default configuration has no intraclass_block_config",
    "pp_ocrv6_small_det": "its default configuration does not fit together",
    "sam2_video": _SESSION,
    "sam3_tracker_video": _SESSION,
    "sam3_video": _SESSION,
    "voxtral_realtime_text": "transformers names a class of it that is not there",
}
