"""What the tiny configurations of families that read pictures, sound or series need beside being smaller."""

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
        "out_indices": [2, 3, 4],
    },
}
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
_SAM3 = {
    "vision_config": {
        "backbone_config": {"image_size": 112, "pretrain_image_size": 56, "window_size": 4, "global_attn_indexes": [1]},
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 64,
    }
}
_LONG = {
    f"{one}_{way}": [[size[0], size[1]], [1, 1], [size[0] // 2, size[1] // 2]]
    for one, sides in (
        ("vertical_long_to_small_conv", lambda side: (side, 1)),
        ("horizontal_small_to_long_conv", lambda side: (1, side)),
        ("symmetric_conv_long", lambda side: (side, side)),
    )
    for way, size in zip(("longratio", "midratio", "shortratio"), map(sides, (7, 5, 3)), strict=True)
}
_INTRACLASS = {"intraclass_block_config": _LONG | {f"{one}_channel": [1, 1, 0] for one in ("reduce", "return")}}
_STAGES = {
    "block_configs": [
        [[3, before, after, stride, True]]
        for before, after, stride in ((96, 96, 1), (96, 96, 2), (96, 192, 2), (192, 384, 2))
    ],
    "out_features": [f"stage{one}" for one in range(1, 5)],
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


def _tracking(vision, size):
    """A tracker of objects in a video: all as wide as its pictures' features, which is twice the width of a memory."""
    inner = {"hidden_size": 128, "mlp_dim": 96, "iou_head_hidden_dim": 64}
    wide = ("memory_encoder_hidden", "memory_attention_hidden")
    narrow = ("memory_attention_feed_forward_hidden", "memory_attention_mlp_hidden")
    return {
        **{f"{name}_size": 128 for name in wide},
        **{f"{name}_size": 96 for name in narrow},
        "image_size": size,
        "memory_attention_num_layers": 2,
        "memory_attention_rope_feat_sizes": [8, 8],
        "mask_downsampler_embed_dim": 128,
        "memory_fuser_embed_dim": 128,
        "memory_fuser_intermediate_dim": 96,
        "mask_decoder_config": inner,
        "prompt_encoder_config": {"hidden_size": 128, "image_size": size},
        "vision_config": vision | {"fpn_hidden_size": 128},
    }


def _of_kinds(kind, backbone):
    """EdgeTAM's pictures, of which its video's configuration does not know the kind."""
    vision = _EDGE["vision_config"]
    return vision | {
        "model_type": kind,
        "backbone_config": vision["backbone_config"] | {"model_type": backbone, "num_classes": 2},
    }


_DETECTOR = {
    **{
        f"{part}_config": {"hidden_size": 128}
        for part in ("detr_encoder", "detr_decoder", "geometry_encoder", "mask_decoder")
    },
    "vision_config": _SAM3["vision_config"] | {"fpn_hidden_size": 128},
}
_EDGE_VIDEO = _tracking(_of_kinds("edgetam_vision_model", "timm_wrapper"), 128) | {
    "memory_attention_rope_k_sizes": [4, 4],
    "perceiver_resampler_num_attention_heads": 1,
    "perceiver_resampler_num_latents": 16,
    "perceiver_resampler_num_latents_2d": 16,
}

SETTINGS_BY_MODALITY = {
    "swin2sr": {"depths": [1, 1], "num_heads": [6, 6], "image_size": 32},
    "muse_spark_audio": {"depths": [1, 1, 1, 1]},
    "muse_spark": {"audio_config": {"depths": [1, 1, 1, 1]}},
    "janus": {"vq_config": {"base_channels": 32, "channel_multiplier": [1, 1]}},
    "autoformer": _SERIES | {"label_length": 4},
    "blip-2": _QUERIES,
    "clap": {"audio_config": {"hidden_size": 128, "patch_embeds_hidden_size": 16, "num_attention_heads": [2, 2, 4, 4]}},
    "clvp": {
        "text_config": {"hidden_size": 128, "projection_dim": 128},
        "speech_config": {"hidden_size": 128, "projection_dim": 128},
        "decoder_config": {"hidden_size": 128},
        "projection_dim": 128,
    },
    "conditional_detr": _RESNET,
    "dab-detr": _RESNET,
    "deformable_detr": _RESNET,
    "depth_anything": {"reassemble_hidden_size": 64, "backbone_config": {"image_size": 56}},
    "depth_pro": {
        "patch_size": 32,
        "fusion_hidden_size": 32,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [32, 32],
        "scaled_images_feature_dims": [32, 32, 32],
        **{f"{one}_model_config": {"image_size": 32, "patch_size": 16} for one in ("image", "patch", "fov")},
    },
    "detr": _RESNET,
    "donut-swin": {"embed_dim": 24},
    "edgetam": _EDGE,
    "edgetam_vision_model": _EDGE["vision_config"],
    "edgetam_video": _EDGE_VIDEO,
    "efficientloftr": {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8},
    "efficientnet": {"image_size": 64, "hidden_dim": 2560},
    "encodec": {"hidden_size": 128},
    "higgs_audio_v2_tokenizer": {"sample_rate": 16_000},  # as its words' part: nothing is resampled
    "idefics": {"vision_config": {"image_size": 56, "embed_dim": 64}},
    "informer": _SERIES,
    "instructblip": _QUERIES,
    "instructblipvideo": _QUERIES | {"video_token_index": 99, "video_token_id": 99},
    "kosmos-2": {"vision_config": {"image_size": 56}, "latent_query_num": 8},
    "layoutlmv2": {"coordinate_size": 12, "shape_size": 8},
    "lw_detr": {
        "projector_scale_factors": [1.0],
        "num_feature_levels": 1,
        "projector_in_channels": [64],
        "projector_out_channels": 64,
        "backbone_config": {"image_size": 128, "window_block_indices": [0, 2]},
    },
    "maskformer-swin": {"embed_dim": 24},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "musicgen": {"audio_encoder": {"upsampling_ratios": [4, 2]}},
    "neucodec": {"quantization_dim": 128},
    "omdet-turbo": dict.fromkeys(("text_projection_in_dim", "text_projection_out_dim", "class_embed_dim"), 64)
    | dict.fromkeys(("d_model", "encoder_hidden_dim", "decoder_hidden_dim"), 256),
    "owlv2": {"text_config": {"max_position_embeddings": 64}},
    "owlvit": {"text_config": {"max_position_embeddings": 64}},
    "pe_audio_video": {"audio_video_config": {"video_config": _VIDEO}},
    "pe_audio_video_encoder": {"video_config": _VIDEO},
    "pe_video": {"video_config": _VIDEO},
    "pe_video_encoder": _VIDEO,
    "pi0": {"vlm_config": {"projection_dim": 64, "hidden_size": 64, "vision_config": {"projection_dim": 64}}},
    "pixtral": {"image_size": 64},
    "pp_doclayout_v2": {"class_thresholds": [0.5, 0.5], "class_order": [0, 1]},
    "pp_formulanet": {
        "vision_config": {
            "post_conv_in_channels": 64,
            "post_conv_out_channels": 64,
            "post_conv_mid_channels": 64,
            "decoder_hidden_size": 64,
            "image_size": 128,
        }
    },
    "pp_ocrv5_server_det": _INTRACLASS | {"kernel_list": [3, 2, 2], "scale_factor_list": [1, 2, 4, 8]},
    "pp_ocrv6_medium_det": _INTRACLASS | {"backbone_config": _STAGES, "scale_factor_list": [1, 2, 4, 8]},
    "pp_ocrv6_small_det": {"layer_list_out_channels": [96, 96, 192, 384], "backbone_config": _STAGES},
    "prompt_depth_anything": {"reassemble_hidden_size": 64, "backbone_config": {"image_size": 56}},
    "rf_detr": {"backbone_config": {"image_size": 112, "window_block_indexes": [0, 2]}},
    "sam": _SAM,
    "sam2": _SAM2,
    "sam2_hiera_det_model": {"hidden_size": 96},
    "sam2_video": _tracking(_SAM2["vision_config"], 128),
    "sam2_vision_model": {"backbone_config": {"hidden_size": 96}},
    "sam3": _SAM3,
    "sam3_lite_text": _SAM3,
    "sam3_tracker": {
        "vision_config": _SAM3["vision_config"] | {"backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]},
        "prompt_encoder_config": {"image_size": 112},
    },
    "sam3_tracker_video": _tracking(_SAM3["vision_config"], 112),
    "sam3_video": {
        "detector_config": _DETECTOR,
        "tracker_config": _tracking(_SAM3["vision_config"], 112),
        "low_res_mask_size": 32,
        "score_threshold_detection": 0.0,
        "new_det_thresh": 0.0,
        "det_nms_thresh": 0.0,
        "hotstart_delay": 0,
        "max_num_objects": 2,
    },
    "sam_hq": _SAM,
    "sapiens2": {"image_size": 64, "num_key_value_heads_per_layer": [4, 2]},
    "seggpt": {"image_size": [128, 64], "merge_index": 0, "intermediate_hidden_state_indices": [0, 1]},
    "siglip": {"vision_config": {"image_size": 64}},
    "slanext": {"post_conv_in_channels": 64},
    "superglue": {"hidden_size": 256, "gnn_layers_types": ["self", "cross"]},
    "table-transformer": _RESNET,
    "time_series_transformer": _SERIES,
    "timm_backbone": {"backbone": "resnet10t"},
    "timm_wrapper": {"architecture": "vit_tiny_patch16_224", "model_args": {"depth": 2}},
    "tvp": {"num_frames": 2, "max_img_size": 64, "visual_prompt_size": 8},
    "udop": {"image_size": 64},
    "uvdoc": {
        "backbone_config": {
            "depths": [1, 1, 1, 3, 3, 3],
            "out_features": [f"stage{one}" for one in range(1, 7)],
            "out_indices": list(range(1, 7)),
        }
    },
    "videomt": {"image_size": 64},
    "videoprism": {"vision_config": {"image_size": 36, "num_frames": 2}},
    "videoprism_vision_model": {"image_size": 36, "num_frames": 2},
    "vision-text-dual-encoder": {"vision_config": {"image_size": 64, "pooler_output_size": 64}},
    "vits": {"flow_size": 64, "use_stochastic_duration_prediction": False},
    "vjepa2": {"crop_size": 64, "frames_per_clip": 4, "pred_hidden_size": 48, "pred_num_attention_heads": 4},
    "xcodec": {"codebook_dim": 128},
    "xcodec2": {"quantization_dim": 128},
}
