"""Generated images, and tiny vision encoders of several families, saved as users have them."""

import numpy as np
import torch
import transformers
from PIL import Image

SIDE, PATCH = 32, 8  # pixels: 4 x 4 patches
_SIZE = {"height": SIDE, "width": SIDE}
_COMMON = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "image_size": SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.7,  # so that weights are far from equal
}
_TEXT = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 50,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
FAMILIES = ("vit", "dinov2", "clip", "siglip")
BESIDE = {"vit": 1, "dinov2": 4, "clip": 1, "siglip": 0}  # tokens that are no patches


def write_pictures(folder, count=3):
    """Smooth colours of several shapes, as PNG, JPEG and WebP."""
    folder.mkdir()
    for number in range(count):
        y, x = np.mgrid[0 : 40 + 8 * number, 0:48]
        pixels = np.stack([128 + 100 * np.sin(x / (5 + number)), 128 + 100 * np.cos(y / 4), 2 * x + y], -1)
        suffix = ("png", "jpg", "webp")[number % 3]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.{suffix}")
    return folder


def vision_model(family):
    """A tiny model with random weights, and its image processor."""
    torch.manual_seed(0)
    if family == "vit":
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**_COMMON))
    elif family == "dinov2":
        config = transformers.Dinov2WithRegistersConfig(**_COMMON, num_register_tokens=3)
        model = transformers.Dinov2WithRegistersModel(config)
    elif family == "swin":
        config = transformers.SwinConfig(
            image_size=SIDE, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
        )
        model = transformers.SwinModel(config)
    else:
        maker = {"clip": "CLIP", "siglip": "Siglip"}[family]
        config = getattr(transformers, f"{maker}Config")(text_config=_TEXT, vision_config=_COMMON)
        model = getattr(transformers, f"{maker}Model")(config)
    for name, weight in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            torch.nn.init.normal_(weight, std=0.7)
    processors = {"clip": transformers.CLIPImageProcessorPil, "siglip": transformers.SiglipImageProcessorPil}
    more = {"size": {"shortest_edge": SIDE}, "crop_size": _SIZE} if family == "clip" else {"size": _SIZE}
    return model.eval(), processors.get(family, transformers.ViTImageProcessorPil)(**more)


def save_vision_model(family, folder):
    """The same in a folder, with both of its configs."""
    for part in vision_model(family):
        part.save_pretrained(folder)
    return folder


def looking_vit(shifts, side=4, sharpness=60.0):
    """A ViT of one layer whose head i looks at the patch `shifts[i]` (rows down, columns right) away, by its positions.

    A position is a row and a column, each one-hot; a query asks for those of its neighbour. What an image shows stands
    beside them, where no query and no key looks.
    """
    width = 2 * side
    config = transformers.ViTConfig(
        **_COMMON
        | {"hidden_size": width * len(shifts), "num_attention_heads": len(shifts), "num_hidden_layers": 1}
        | {"image_size": side * PATCH}
    )
    model = transformers.ViTModel(config).eval()
    attention = model.layers[0].attention if hasattr(model, "layers") else model.encoder.layer[0].attention
    projections = dict(attention.named_modules())
    query, key = (
        next(module for name, module in projections.items() if name.endswith(names))
        for names in (("query", "q_proj"), ("key", "k_proj"))
    )
    with torch.no_grad():
        for parameter in (*model.embeddings.parameters(), *query.parameters(), *key.parameters()):
            parameter.zero_()
        model.embeddings.patch_embeddings.projection.weight[width:].normal_(std=1e-3)
        table = model.embeddings.position_embeddings[0, 1:].view(side, side, -1)
        for place in range(side):
            table[place, :, place] = 1
            table[:, place, side + place] = 1
        for head, shift in enumerate(shifts):
            at = head * width
            key.weight[at : at + width, :width] = torch.eye(width)
            for axis, step in enumerate(shift):
                eye = torch.diag(torch.ones(side - abs(step)), -step)  # from the place of a query to its neighbour's
                block = slice(at + axis * side, at + (axis + 1) * side)
                query.weight[block, axis * side : (axis + 1) * side] = sharpness * eye
    return model
