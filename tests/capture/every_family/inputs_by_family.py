"""Inputs of families that the general rules of inputs.py do not make."""

import torch

LENGTH = 24


def _words(length=LENGTH):
    return torch.randint(3, 60, (1, length))


def _with_tokens(token, count):
    """A text that begins with a token for each of some pictures' parts."""
    text = _words()
    text[:, :count] = token
    return text


def _series(config):
    past, ahead = config.context_length + max(config.lags_sequence), config.prediction_length
    return {
        "past_values": torch.rand(1, past),
        "past_time_features": torch.rand(1, past, config.num_time_features),
        "past_observed_mask": torch.ones(1, past),
        "future_values": torch.rand(1, ahead),
        "future_time_features": torch.rand(1, ahead, config.num_time_features),
    }


def _episode(config):
    return {
        "states": torch.randn(1, 8, config.state_dim),
        "actions": torch.randn(1, 8, config.act_dim),
        "rewards": torch.randn(1, 8, 1),
        "returns_to_go": torch.randn(1, 8, 1),
        "timesteps": torch.arange(8)[None],
        "attention_mask": torch.ones(1, 8, dtype=torch.long),
    }


def _queries_of_pictures(config):
    return {
        "pixel_values": torch.randn(1, 3, 56, 56),
        "qformer_input_ids": _words(8),
        "input_ids": _with_tokens(config.image_token_id, config.num_query_tokens),
    }


def _naflex(config):
    config = getattr(config, "vision_config", config)
    return {
        "pixel_values": torch.randn(1, 16, config.num_channels * config.patch_size**2),
        "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4]]),
    }


def _states_of_another(config):
    """What the model to be assisted has made: its last word, as `generate` gives it; its keys and values."""
    kinds = config.text_config.layer_types
    layers = [config.text_config.per_layer_config[number] for number in range(len(kinds))]
    sizes = [(1, layer.num_key_value_heads, LENGTH, layer.head_dim) for layer in layers]
    return {
        "inputs_embeds": torch.randn(1, 1, 2 * config.backbone_hidden_size),
        "position_ids": torch.tensor([[LENGTH - 1]]),
        "shared_kv_states": {
            kind: (torch.randn(size), torch.randn(size)) for kind, size in zip(kinds, sizes, strict=True)
        },
    }


def _bands(frames, bands):
    return {"input_features": torch.randn(1, frames, bands)}


def _masked_bands(frames, bands):
    return _bands(frames, bands) | {"input_features_mask": torch.ones(1, frames, dtype=torch.long)}


def _random(**sizes):
    """Random numbers of a shape, or so many random words."""

    def make(_):
        return {name: _words(size) if isinstance(size, int) else torch.randn(size) for name, size in sizes.items()}

    return make


def _prompted(size):
    """A picture and a point in it."""
    return lambda _: {"pixel_values": torch.randn(1, 3, size, size), "input_points": torch.rand(1, 1, 1, 2) * size}


INPUTS = {
    "audio-spectrogram-transformer": lambda config: {
        "input_values": torch.randn(1, config.max_length, config.num_mel_bins)
    },
    "autoformer": _series,
    "blip-2": lambda config: {k: v for k, v in _queries_of_pictures(config).items() if "qformer" not in k},
    "bros": lambda config: {"input_ids": _words(), "bbox": torch.rand(1, LENGTH, 4)},
    "clap": lambda config: {
        "input_ids": _words(),
        "input_features": torch.randn(1, 1, 100, config.audio_config.num_mel_bins),
        "is_longer": torch.zeros(1, 1, dtype=torch.bool),
    },
    "clvp": _random(input_ids=LENGTH, input_features=(1, 80, 64)),
    "decision_transformer": _episode,
    "depth_pro": _random(pixel_values=(1, 3, 128, 128)),
    "edgetam": _prompted(128),
    "edgetam_vision_model": _random(pixel_values=(1, 3, 128, 128)),
    "efficientloftr": _random(pixel_values=(1, 2, 1, 64, 64)),
    "efficientnet": _random(pixel_values=(1, 3, 64, 64)),
    "encodec": _random(input_values=(1, 1, 2400)),
    "fun_asr_nano_encoder": lambda config: _masked_bands(64, config.input_size),
    "gemma3n_audio": lambda config: {
        "audio_mel": torch.randn(1, 128, config.input_feat_size),
        "audio_mel_mask": torch.zeros(1, 128, dtype=torch.bool),
    },
    "gemma4_assistant": _states_of_another,
    "gemma4_audio": lambda config: _bands(128, 128),
    "gemma4_unified_assistant": _states_of_another,
    "gemma4_vision": lambda config: {
        "pixel_values": torch.randn(1, 36, 3 * config.patch_size**2),
        "pixel_position_ids": torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="xy"), -1).reshape(
            1, 36, 2
        ),
    },
    "granite_speech5_ctc": lambda config: _bands(64, 320),
    "granite_speech5_encoder": lambda config: _bands(64, 320),
    "grounding-dino": _random(pixel_values=(1, 3, 64, 64), input_ids=LENGTH),
    "higgs_audio_v2_tokenizer": _random(input_values=(1, 1, 9600)),
    "idefics": lambda config: {
        "input_ids": _words(),
        "pixel_values": torch.randn(1, 1, 3, config.vision_config.image_size, config.vision_config.image_size),
        "image_attention_mask": torch.ones(1, LENGTH, 1, dtype=torch.long),
    },
    "informer": _series,
    "inkling2_vision": lambda config: {
        "pixel_values": torch.randn(4, 4 * config.patch_size**2, 3),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
    },
    "instructblip": _queries_of_pictures,
    "instructblipvideo": lambda config: (
        _queries_of_pictures(config)
        | {
            "pixel_values": torch.randn(1, 2, 3, 56, 56),
            "qformer_input_ids": _words(8),
            "input_ids": _with_tokens(config.video_token_id, 2 * config.num_query_tokens),
        }
    ),
    "jev": lambda config: {
        "input_ids": _words(),
        "marks": torch.tensor([[5, 9]]),
        "num_options": torch.tensor([[2, 2]]),
        "question_type_ids": torch.tensor([[0, 0]]),
    },
    "kimi_k25_vision": lambda config: {
        "pixel_values": torch.randn(16, 3, config.patch_size, config.patch_size),
        "grid_thw": torch.tensor([[1, 4, 4]]),
    },
    "layoutlmv2": lambda _: {
        "input_ids": _words(),
        "bbox": torch.zeros(1, LENGTH, 4, dtype=torch.long),
        "image": torch.rand(1, 3, 64, 64),
    },
    "kosmos-2": lambda config: {
        "input_ids": _words(),
        "pixel_values": torch.randn(1, 3, 56, 56),
        "image_embeds_position_mask": (torch.arange(LENGTH) < config.latent_query_num)[None],
    },
    "mimi_decoder": lambda config: {"latents": torch.randn(1, config.hidden_size, 16)},
    "minicpm_ocr_vision": lambda config: {
        "pixel_values": torch.randn(1, 3, config.patch_size, 16 * config.patch_size),
        "target_sizes": torch.tensor([[4, 4]]),
    },
    "minicpmv4_7_vision": lambda config: {
        "pixel_values": torch.randn(1, 3, config.patch_size, 16 * config.patch_size),
        "target_sizes": torch.tensor([[4, 4]]),
    },
    "mm-grounding-dino": _random(pixel_values=(1, 3, 64, 64), input_ids=LENGTH),
    "muse_glimmer_assistant": lambda config: {
        "noise_embeds": torch.randn(1, 8, config.hidden_size),
        "context_hidden_states": torch.randn(1, 8, config.hidden_size * len(config.target_layer_ids)),
        "attention_mask": torch.ones(1, 16, dtype=torch.long),
    },
    "musicgen": lambda config: {"input_ids": _words(), "decoder_input_ids": torch.randint(3, 60, (4, 17))},
    "musicgen_melody": lambda config: {"input_ids": _words(), "decoder_input_ids": torch.randint(3, 60, (4, 17))},
    "neucodec": _random(input_values=(1, 1, 3200), input_features=(1, 10, 160)),
    "omdet-turbo": lambda config: {
        "pixel_values": torch.randn(1, 3, config.image_size, config.image_size),
        "classes_input_ids": torch.randint(3, 60, (3, 8)),
        "classes_attention_mask": torch.ones(3, 8, dtype=torch.long),
        "tasks_input_ids": _words(8),
        "tasks_attention_mask": torch.ones(1, 8, dtype=torch.long),
        "classes_structure": torch.tensor([3]),
    },
    "oneformer": lambda config: {
        "pixel_values": torch.randn(1, 3, 64, 64),
        "task_inputs": torch.randint(3, 60, (1, 77)),
    },
    "pe_audio_video": _random(input_ids=LENGTH, input_values=(1, 1, 19200), pixel_values_videos=(1, 2, 3, 224, 224)),
    "pe_audio_video_encoder": _random(input_values=(1, 1, 19200), pixel_values_videos=(1, 2, 3, 224, 224)),
    "pe_video": _random(input_ids=LENGTH, pixel_values_videos=(1, 2, 3, 224, 224)),
    "pe_video_encoder": _random(pixel_values_videos=(1, 2, 3, 224, 224)),
    "pi0": lambda config: {
        "action_embeds": torch.randn(1, 9, config.dit_config.hidden_size),
        "input_ids": _with_tokens(config.vlm_config.image_token_id, 1),
        "pixel_values": torch.randn(1, 1, 3, 224, 224),
        "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
        "attention_mask": torch.ones(1, LENGTH, dtype=torch.long),
    },
    "pixtral": _random(pixel_values=(1, 3, 64, 64)),
    "pocket_tts_audio_tokenizer_decoder": lambda config: {"latents": torch.randn(1, config.hidden_size, 16)},
    "pp_formulanet": _random(pixel_values=(1, 3, 128, 128), decoder_input_ids=17),
    "pp_ocrv5_mobile_rec": _random(pixel_values=(1, 3, 96, 320)),
    "qwen3_asr_encoder": lambda config: {
        "input_features": torch.randn(1, config.num_mel_bins, 200),
        "input_features_mask": torch.ones(1, 200, dtype=torch.long),
    },
    "sam": _prompted(64),
    "sam2": _prompted(128),
    "sam3": _random(pixel_values=(1, 3, 112, 112), input_ids=LENGTH),
    "sam3_lite_text": _random(pixel_values=(1, 3, 112, 112), input_ids=LENGTH),
    "sam3_tracker": _prompted(112),
    "sam_hq": _prompted(64),
    "sapiens2": _random(pixel_values=(1, 3, 64, 64)),
    "seggpt": _random(pixel_values=(1, 3, 64, 64), prompt_pixel_values=(1, 3, 64, 64), prompt_masks=(1, 3, 64, 64)),
    "shieldgemma2": _random(input_ids=LENGTH),
    "siglip": _random(input_ids=16, pixel_values=(1, 3, 64, 64)),
    "siglip2": lambda config: {"input_ids": _words(16)} | _naflex(config),
    "siglip2_vision_model": _naflex,
    "superglue": _random(pixel_values=(1, 2, 1, 64, 64)),
    "time_series_transformer": _series,
    "timesfm": lambda config: {
        "past_values": torch.rand(1, 4 * config.patch_length),
        "past_values_padding": torch.zeros(1, 4 * config.patch_length, dtype=torch.long),
        "freq": torch.zeros(1, 1, dtype=torch.long),
    },
    "timesfm2_5": lambda config: {"past_values": torch.rand(1, 4 * config.patch_length)},
    "timm_wrapper": _random(pixel_values=(1, 3, 224, 224)),
    "tvp": _random(input_ids=LENGTH, pixel_values=(1, 2, 3, 64, 64)),
    "udop": lambda config: {
        "input_ids": _words(),
        "bbox": torch.rand(1, LENGTH, 4),
        "pixel_values": torch.randn(1, 3, 64, 64),
        "decoder_input_ids": _words(17),
    },
    "vibevoice_acoustic_tokenizer_decoder": lambda config: {"hidden_states": torch.randn(1, config.hidden_size, 4)},
    "vibevoice_acoustic_tokenizer_encoder": _random(hidden_states=(1, 1, 6400)),
    "video_llama_3_vision": lambda config: {
        "pixel_values": torch.randn(16, 3 * config.patch_size**2),
        "grid_thw": torch.tensor([[1, 4, 4]]),
        "merge_sizes": torch.tensor([1]),
    },
    "videomt": lambda config: {"pixel_values_videos": torch.randn(1, 2, 3, config.image_size, config.image_size)},
    "videoprism": _random(input_ids=16, pixel_values_videos=(1, 2, 3, 36, 36)),
    "videoprism_vision_model": _random(pixel_values_videos=(1, 2, 3, 36, 36)),
    "vision-text-dual-encoder": _random(input_ids=LENGTH, pixel_values=(1, 3, 64, 64)),
    "vits": lambda config: {"input_ids": torch.randint(3, 38, (1, LENGTH))},
    "vjepa2": lambda config: {
        "pixel_values_videos": torch.randn(1, config.frames_per_clip, 3, config.crop_size, config.crop_size)
    },
    "voxtral_realtime": lambda config: {
        "input_ids": _words(),
        "input_features": torch.randn(1, config.audio_config.num_mel_bins, LENGTH * config.audio_length_per_tok),
    },
    "voxtral_realtime_text": lambda config: {"input_ids": _words(), "t_cond": torch.randn(1, 1, config.hidden_size)},
    "wav2vec2-bert": lambda config: _bands(64, config.feature_projection_input_dim),
    "xcodec": _random(input_values=(1, 1, 3200)),
    "xcodec2": _random(input_values=(1, 1, 3200), input_features=(1, 10, 160)),
}
