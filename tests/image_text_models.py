"""Tiny models of vision and language with random weights, saved as users have them, and texts with pictures."""

import json

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoTokenizer

from attnscope.bundled import MODEL

SIDE, PATCH = 32, 8  # pixels: 4 x 4 patches
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}"
    "{% if part.type == 'image' %}MARK{% elif part.type == 'video' %}FILM"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
)
_DECODER = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 512,
}
_VISION = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "image_size": SIDE,
    "patch_size": PATCH,
}
_QWEN2_5_VISION = {
    "hidden_size": 16,
    "out_hidden_size": 32,
    "intermediate_size": 32,
    "window_size": 4 * PATCH,
    "fullatt_block_indexes": [1],
}
FAMILIES = ("llava", "qwen2_vl", "idefics3", "internvl")


def tokenizer_with(*tokens):
    """The bundled tokenizer with tokens that stand for images."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    return tokenizer


def save_pictured_model(family, folder):
    """A model and its processor in a folder."""
    torch.manual_seed(0)
    return saved(*_MAKERS[family](), folder)


def saved(model, processor, folder):
    """The same of a model and its processor, with weights that are far from equal."""
    for name, weight in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight", "embed_tokens.weight", "qkv.weight")):
            torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(folder)
    save_processor(processor, folder)
    return folder


def save_processor(parts, folder):
    """What a processor is made of, as its `save_pretrained` writes it, but the part for videos, which needs more."""
    settings, images, tokenizer = parts
    images.save_pretrained(folder)
    mark = settings.pop("mark")
    tokenizer.chat_template = TEMPLATE.replace("MARK", mark).replace("FILM", mark.replace("image", "video"))
    tokenizer.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(settings))


def text_config(tokenizer, decoder=None):
    return (decoder or _DECODER) | {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _llava(decoder=None):
    tokenizer = tokenizer_with("<image>")
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_VISION),
        text_config=transformers.LlamaConfig(**text_config(tokenizer, decoder)),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    size = {"height": SIDE, "width": SIDE}
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    settings = {
        "processor_class": "LlavaProcessor",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "mark": "<image>",
    }
    return transformers.LlavaForConditionalGeneration(config), (settings, images, tokenizer)


def _qwen2_vl(version="2"):
    tokenizer = tokenizer_with("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    ids = tokenizer.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    name = {"2": "Qwen2VL", "2.5": "Qwen2_5_VL"}[version]
    config = getattr(transformers, f"{name}Config")(
        text_config=text_config(tokenizer) | {"rope_parameters": rope},
        vision_config={
            "depth": 2,
            "num_heads": 2,
            "patch_size": PATCH,
            **(_QWEN2_5_VISION if version == "2.5" else {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}),
        },
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
    )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    )
    settings = {"processor_class": f"{name}Processor", "mark": "<|vision_start|><|image_pad|><|vision_end|>"}
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), (settings, images, tokenizer)


def _idefics3(split=True):
    marks = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer = tokenizer_with("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *marks)
    config = transformers.Idefics3Config(
        vision_config=_VISION,
        text_config=transformers.LlamaConfig(**text_config(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}, do_image_splitting=split
    )
    settings = {"processor_class": "Idefics3Processor", "image_seq_len": 4, "mark": "<image>"}
    return transformers.Idefics3ForConditionalGeneration(config), (settings, images, tokenizer)


def _named(**tokens):
    """The bundled tokenizer with tokens that a processor asks for by their names."""
    plain = tokenizer_with(*tokens.values())
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer,
        bos_token=plain.bos_token,
        eos_token=plain.eos_token,
        pad_token=plain.pad_token,
        unk_token=plain.unk_token,
        extra_special_tokens=tokens,
    )


def _internvl():
    marks = {"start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>"}
    tokenizer = _named(context_image_token="<IMG_CONTEXT>", **marks)
    config = transformers.InternVLConfig(
        text_config={**text_config(tokenizer), "model_type": "qwen2"},
        vision_config={**_VISION, "image_size": [SIDE] * 2, "patch_size": [PATCH] * 2},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        downsample_ratio=0.5,
        image_seq_length=4,
    )
    images = transformers.GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_patches=4)
    settings = {"processor_class": "InternVLProcessor", "image_seq_length": 4, "mark": "<IMG_CONTEXT>"}
    return transformers.InternVLForConditionalGeneration(config), (settings, images, tokenizer)


def _gemma3():
    tokenizer = _named(image_token="<soft>", boi_token="<boi>", eoi_token="<eoi>")
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.Gemma3Config(
        text_config={**text_config(tokenizer), "head_dim": 8, "sliding_window": 16},
        vision_config={**_VISION, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
        image_token_index=ids("<soft>"),
        boi_token_index=ids("<boi>"),
        eoi_token_index=ids("<eoi>"),
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # 0 before it is trained
    images = transformers.Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    settings = {"processor_class": "Gemma3Processor", "image_seq_length": 4, "mark": "<boi>"}
    return model, (settings, images, tokenizer)


_MAKERS = {
    "llava": _llava,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": lambda: _qwen2_vl("2.5"),
    "idefics3": _idefics3,
    "internvl": _internvl,
    "gemma3": _gemma3,
}


def picture(number, height=48, width=32):
    """Smooth colours."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([128 + 100 * np.sin(x / (5 + number)), 128 + 100 * np.cos(y / 4), 2 * x + y], -1)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_pictured(folder):
    """Lines of texts and of chats, with one image, two, and none; their paths count from the folder."""
    folder.mkdir()
    for number in range(3):
        picture(number, 32 + 16 * number, 48).save(folder / f"{number}.png")
    texts = [
        {"text": "<image> The tide is out.", "image": "0.png"},
        {"text": "Two boats: <image> and <image>. Which one lies on the mud?", "images": ["1.png", "2.png"]},
        {"text": "No boat at all.", "images": []},
    ]
    ask = {"role": "user", "content": "<image>What is this?"}
    chats = [
        {"messages": [ask, {"role": "assistant", "content": "A boat on the mud."}], "image": "1.png"},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "path": "2.png"}, {"type": "text", "text": "And this?"}]}
            ]
        },
    ]
    for name, lines in (("texts", texts), ("chats", chats)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def save_looking_llava(folder):
    """A LLaVA of one layer in whose first head every token of text looks at the blue patch of the image before it.

    The vision tower adds nothing to its patches: the first number of each says whether it is blue, the projector makes
    0 of what is not, and keys read that number alone, in a part of the head that RoPE hardly turns.
    """
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e12}
    model, parts = _llava(_DECODER | {"num_hidden_layers": 1, "rope_parameters": rope})
    tower, projector = model.model.vision_tower, model.model.multi_modal_projector
    layer = model.model.language_model.layers[0]
    with torch.no_grad():
        for name, weight in tower.named_parameters():
            if name.endswith(("out_proj.weight", "fc2.weight", "bias", "position_embedding.weight")):
                weight.zero_()
        patches = next(one for name, one in tower.named_parameters() if name.endswith("patch_embedding.weight"))
        patches.normal_(std=1e-3)
        patches[:2] = 0
        patches[0, 2], patches[1, 2] = 1 / PATCH**2, -1 / PATCH**2
        for part in (projector.linear_1, projector.linear_2):
            part.weight.zero_()
            part.bias.zero_()
            part.weight[:16, :16] = torch.eye(16)
        projector.linear_1.weight[0, 0] = 5
        projector.linear_2.weight[:2] = 0
        projector.linear_2.weight[0, 0] = 1
        projector.linear_2.bias[20] = 1
        embedded = model.get_input_embeddings().weight
        embedded.normal_(std=1e-3)
        embedded[:, 0], embedded[:, 1] = 0, 1
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            part.weight.zero_()
        layer.self_attn.q_proj.weight[3, 1] = 30
        layer.self_attn.k_proj.weight[3, 0] = 1
    model.save_pretrained(folder)
    save_processor(parts, folder)
    return folder


def blue_at(row, column):
    """A black image with one blue patch."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH, 2] = 255
    return Image.fromarray(pixels)
