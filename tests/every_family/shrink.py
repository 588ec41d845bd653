"""A tiny configuration of any family: its own default one, with fewer and smaller parts."""

import re

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig

from tests.every_family.odd import SETTINGS

WIDTH, HEADS, HEAD_WIDTH, WORDS, POSITIONS, LAYERS = 64, 4, 16, 100, 128, 2

# Name of a setting, and what becomes of its number; the first that fits counts.
_RULES = (
    (r"(vocab_size|n_words|vocab_size_per_layer_input)$", lambda old: min(old, WORDS)),
    (r"^num_kv_shared_layers$", lambda old: 0),
    (r"^upsample_groups$", lambda old: min(old, WIDTH)),
    (r"coder_num_key_value_heads$", lambda old: HEADS),
    (r"(pad|bos|eos|sep|cls|mask|unk)_token_id$", lambda old: old if old < WORDS else old % 3),
    (r"_token_(id|index)$", lambda old: old if old < WORDS else WORDS - 1 - old % 40),
    (r"(feat|conv)\w*_layers$", lambda old: old),
    (r"(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num)$", lambda old: min(old, 2)),
    (r"(num_attention_heads|_attention_heads|n_head|n_heads|num_heads|num_attn_heads)$", lambda old: HEADS),
    (r"^attention_heads$", lambda old: HEADS),
    (r"^(num_hidden_layers|n_layers?|num_layers|layers|encoder_layers|decoder_layers|depth|num_blocks)$", lambda old: LAYERS),
    (r"(num_\w*layers|_num_hidden_layers|_depth)$", lambda old: min(old, LAYERS)),
    (r"^(hidden_size|d_model|n_embd|dim|embed_dim|d_embed|hidden_dim|emb_dim|text_dim)$", lambda old: WIDTH if old >= WIDTH else old),
    (r"^(head_dim|d_kv|attention_head_dim|d_head|dim_head|attention_head_size)$", lambda old: HEAD_WIDTH),
    (r"(intermediate_size|ffn_dim|d_ff|d_inner|n_inner|mlp_dim|dim_ff)$", lambda old: min(old, 96) if old else old),
    (r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_experts_total)$", lambda old: min(old, 4)),
    (r"^(num_experts_per_tok|moe_topk|moe_k|topk)$", lambda old: min(old, 2)),
    (r"^(n_group|topk_group)$", lambda old: 1),
    (r"^(max_position_embeddings|n_positions|max_source_positions|max_target_positions)$", lambda old: min(old, POSITIONS) if old > 0 else old),
    (r"^(q_lora_rank|kv_lora_rank)$", lambda old: min(old, 16)),
    (r"^qk_rope_head_dim$", lambda old: min(old, 8)),
    (r"^(qk_nope_head_dim|v_head_dim)$", lambda old: min(old, 16)),
    (r"^(rotary_dim)$", lambda old: min(old, 8)),
    (r"(sliding_window|attention_window|local_attention|window_size_left)$", lambda old: min(old, 8)),
)
_RULES = tuple((re.compile(name), change) for name, change in _RULES)


def tiny_config(family: str) -> PretrainedConfig:
    """The smallest configuration of a family that still has all its parts."""
    maker = CONFIG_MAPPING[family]
    given = SETTINGS.get(family, {})
    if given is not None and "=" in given:  # all of it by hand
        return maker(**given["="])
    config = maker(**given.get("+", {}))
    settings = _smaller(config.to_dict(), sections=_turns_by_sections(family))
    settings = _merged(settings, {name: value for name, value in given.items() if name not in "+="})
    config = maker(**settings)
    for part in (config, config.get_text_config()):
        if not hasattr(part, "pad_token_id"):
            part.pad_token_id = 0
    return config


def _turns_by_sections(family: str) -> bool:
    """Whether RoPE has parts for time, height and width, whose default sizes stand in the code."""
    return family.startswith(("glm4", "glm_", "glmga", "colqwen", "paddleocr", "qwen2", "qwen3", "cohere_compass", "ernie4_5_vl"))


def _smaller(settings: dict, *, sections: bool) -> dict:
    found = {}
    for name, value in settings.items():
        if not isinstance(name, str) or name in {"transformers_version", "model_type", "architectures", "id2label", "label2id", "dtype"}:
            continue
        found[name] = _smaller(value, sections=sections) | ({"model_type": value["model_type"]} if "model_type" in value else {}) if isinstance(value, dict) else _changed(name, value)
    if "head_dim" in settings and settings["head_dim"] is None and "num_attention_heads" in settings:
        found["head_dim"] = HEAD_WIDTH
    if settings.get("head_dim") is not None and settings.get("head_dim") == settings.get("qk_rope_head_dim"):
        found["head_dim"] = found["qk_rope_head_dim"]
    if isinstance(settings.get("num_heads"), list) and isinstance(settings.get("embed_dim"), int):
        found["embed_dim"] = 8 * settings["num_heads"][0]
    heads, groups = (settings.get(name) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and heads == groups:
        found["num_key_value_heads"] = found["num_attention_heads"]
    for name in ("out_features", "out_indices"):
        found.pop(name, None)
    layers = next((found[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(found.get(n), int)), None)
    before = next((settings[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(settings.get(n), int)), None)
    for name, value in found.items():
        if isinstance(value, list) and layers and len(value) == before:
            found[name] = _some(value, layers)
        if name == "per_layer_config" and isinstance(value, dict):
            found[name] = {}
    if "qk_head_dim" in found and "qk_nope_head_dim" in found:
        del found["qk_head_dim"]
    rope = found.get("rope_parameters")
    if isinstance(rope, dict) and isinstance(found.get("head_dim", HEAD_WIDTH), int) and ("mrope_section" in rope or sections):
        half = int(found.get("head_dim", HEAD_WIDTH) * rope.get("partial_rotary_factor", found.get("partial_rotary_factor", 1.0))) // 2
        rope["mrope_section"] = [half - 2 * (half // 4), half // 4, half // 4]
    return found


def _some(kinds: list, count: int) -> list:
    """As many, with every kind in it if there is room."""
    chosen = list(dict.fromkeys(kinds))[:count]
    return chosen + [chosen[-1]] * (count - len(chosen))


def _changed(name, value):
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    for pattern, change in _RULES:
        if pattern.search(name):
            return change(value)
    return value


def _merged(settings: dict, more: dict) -> dict:
    merged = dict(settings)
    for name, value in more.items():
        if value is DROP:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = _merged(merged[name], value)
        else:
            merged[name] = value
    return merged


DROP = object()
