"""A tiny configuration of any family: its own default one, with fewer and smaller parts."""

import re
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from tests.capture.every_family.settings import DEFAULTS, SETTINGS

WIDTH, INNER, HEADS, GROUPS, HEAD_WIDTH = 64, 96, 4, 2, 16
WORDS, POSITIONS, LAYERS, EXPERTS, RANK = 100, 128, 2, 4, 16


def _to(least):
    return lambda old: min(old, least)


# Part of a setting's name, and what becomes of its number; the first that fits counts.
_RULES = tuple(
    (re.compile(name), change)
    for name, change in (
        (r"(vocab_size|n_words|vocab_size_per_layer_input)$", _to(WORDS)),
        (r"(feat|conv)\w*_layers$", lambda old: old),
        (r"^num_kv_shared_layers$", lambda old: 0),
        (r"^upsample_groups$", _to(WIDTH)),
        (r"coder_num_key_value_heads$", lambda old: HEADS),
        (r"(pad|bos|eos|sep|cls|mask|unk)_token_id$", lambda old: old if old < WORDS else old % 3),
        (r"_token_(id|index)$", lambda old: old if old < WORDS else WORDS - 1 - old % 40),
        (r"(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num)$", _to(GROUPS)),
        (r"(attention_heads|n_head|n_heads|num_heads|num_attn_heads)$", lambda old: HEADS),
        (r"^(n_layers?|layers|encoder_layers|decoder_layers|depth|num_blocks)$", lambda old: LAYERS),
        (r"^(num_hidden_layers|num_layers)$", lambda old: LAYERS),
        (r"(num_\w*layers|_num_hidden_layers|_depth)$", _to(LAYERS)),
        (r"^(hidden_size|d_model|n_embd|dim|embed_dim|d_embed|hidden_dim|emb_dim|text_dim)$", _to(WIDTH)),
        (r"^(head_dim|d_kv|attention_head_dim|d_head|dim_head|attention_head_size)$", lambda old: HEAD_WIDTH),
        (r"(intermediate_size|ffn_dim|d_ff|d_inner|n_inner|mlp_dim|dim_ff)$", _to(INNER)),
        (r"^num_queries$", _to(16)),
        (r"^num_filters$", _to(8)),
        (r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts)$", _to(EXPERTS)),
        (r"^(num_experts_per_tok|moe_topk|moe_k|topk)$", _to(2)),
        (r"^(output_channels|attention_hidden_size)$", _to(WIDTH)),
        (r"^(n_groups?|topk_group|mamba_n_groups)$", lambda old: 1),
        (
            r"^(text|out|audio)_hidden_size$|^(projection_size|condition_dim|adapter_in_dim|adapter_input_size)$",
            _to(WIDTH),
        ),
        (r"^(max_position_embeddings|n_positions|max_(source|target)_positions)$", _to(POSITIONS)),
        (r"^(q_lora_rank|kv_lora_rank|qk_nope_head_dim|v_head_dim)$", _to(RANK)),
        (r"^(qk_rope_head_dim|rotary_dim)$", _to(8)),
        (r"(sliding_window|attention_window|local_attention|window_size_left)$", _to(8)),
    )
)
_LEFT = {"transformers_version", "model_type", "architectures", "id2label", "label2id", "dtype"}
_LEFT |= {"per_layer_config"}  # numbers of layers that are no more
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
# RoPE with parts for time, height and width, whose default sizes stand in the code
_BY_SECTIONS = ("glm4", "glm_", "glmga", "colqwen", "paddleocr", "qwen2", "qwen3", "ernie4_5_vl")


def tiny_config(family: str) -> PretrainedConfig:
    """The smallest configuration of a family that still has all its parts."""
    maker = CONFIG_MAPPING[family]
    settings = _smaller(maker(**DEFAULTS.get(family, {})).to_dict(), by_sections=family.startswith(_BY_SECTIONS))
    config = maker(**_merged(settings, SETTINGS.get(family, {})))
    for part in (config, text_of(config)):
        if not hasattr(part, "pad_token_id"):
            part.pad_token_id = 0
    return config


def text_of(config: PretrainedConfig) -> PretrainedConfig:
    """What is said of the text, a decoder's where an encoder has its own."""
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def _smaller(settings: dict, *, by_sections: bool) -> dict:
    found: dict[Any, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and name not in _LEFT:
            found[name] = _smaller(value, by_sections=by_sections)
            if "model_type" in value:
                found[name]["model_type"] = value["model_type"]
        elif isinstance(name, str) and name not in _LEFT:
            found[name] = _changed(name, value)
    _fit_heads(settings, found)
    _fit_layers(settings, found)
    rope = found.get("rope_parameters")
    if isinstance(rope, dict) and ("mrope_section" in rope or by_sections):
        share = rope.get("partial_rotary_factor", found.get("partial_rotary_factor", 1.0))
        half = int((found.get("head_dim") or HEAD_WIDTH) * share) // 2
        rope["mrope_section"] = [half - 2 * (half // 4), half // 4, half // 4]
    return found


def _changed(name, value):
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return next((change(value) for pattern, change in _RULES if pattern.search(name)), value)


def _fit_heads(settings, found):
    """What went together before goes together now."""
    heads, groups, width = (settings.get(one) for one in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if isinstance(heads, int) and heads == groups:
        found["num_key_value_heads"] = found["num_attention_heads"]
    if "head_dim" in settings and width is None and "num_attention_heads" in settings:
        found["head_dim"] = HEAD_WIDTH
    if width is not None and width == settings.get("qk_rope_head_dim"):
        found["head_dim"] = found["qk_rope_head_dim"]
    if "qk_nope_head_dim" in found:
        found.pop("qk_head_dim", None)
    if isinstance(settings.get("num_heads"), list) and isinstance(settings.get("embed_dim"), int):
        found["embed_dim"] = 8 * settings["num_heads"][0]


def _fit_layers(settings, found):
    """Lists with an entry for each layer have as many as there are now, of every kind if there is room."""
    _fit_stages(settings, found)
    before, now = (next((of[one] for one in _LAYERS if isinstance(of.get(one), int)), None) for of in (settings, found))
    for name, value in found.items():
        if now and isinstance(value, list) and len(value) == before:
            kinds = [one for place, one in enumerate(value) if one not in value[:place]][:now]
            found[name] = kinds + [kinds[-1]] * (now - len(kinds))


def _fit_stages(settings, found):
    """A backbone gives as many maps of features as before; stages of several layers are as many as they were."""
    depths, maps = settings.get("depths"), settings.get("out_indices")
    layered = any(isinstance(found.get(one), int) for one in _LAYERS)
    found.pop("stage_names", None)
    if isinstance(depths, list):
        found["depths"] = [min(one, 2) for one in depths]
        if found.get("out_features"):
            found.pop("out_indices", None)
        for name in _LAYERS:
            found.pop(name, None)
    elif layered:
        for name in ("out_features", "out_indices"):
            found.pop(name, None)
        if maps and len(maps) > 1 and "num_hidden_layers" in found:
            found["num_hidden_layers"] = len(maps)
            found["out_indices"] = list(range(1, len(maps) + 1))


def _merged(settings: dict, more: dict) -> dict:
    merged = dict(settings)
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        kinds = [one.get("model_type") for one in (value, merged[name])] if both else [None]
        if None not in kinds and kinds[0] != kinds[1]:
            both = False  # a part of another kind takes nothing from the one in whose place it is
        merged[name] = _merged(merged[name], value) if both else value
    return merged
