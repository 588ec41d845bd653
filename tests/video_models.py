"""Tiny models of vision and language that read videos, saved as users have them, and generated frames."""

import numpy as np
import torch
import transformers
from PIL import Image

from tests.image_text_models import PATCH, SIDE, save_pictured_model, saved, text_config, tokenizer_with

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "llava_onevision")


def frames(count, height=48, width=32):
    """Smooth colours that move, ``(frame, row, column, 3)`` of 8 bits."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = [
        np.stack([128 + 100 * np.sin((x + 4 * t) / 5), 128 + 100 * np.cos((y - 3 * t) / 4), 2 * x + y], -1)
        for t in range(count)
    ]
    return np.stack(pixels).clip(0, 255).astype(np.uint8)


def write_frames(folder, count):
    """The same as files, of which the tenth sorts before the second by its letters."""
    folder.mkdir(parents=True)
    for number, pixels in enumerate(frames(count)):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def save_filmed_model(family, folder):
    """A model, its processor and its video processor in a folder."""
    if family == "llava_onevision":
        torch.manual_seed(0)
        saved(*_llava_onevision(), folder)
        reader = transformers.LlavaOnevisionVideoProcessor(size={"height": SIDE, "width": SIDE})
    else:
        save_pictured_model(family, folder)
        size = {"shortest_edge": 16 * 16, "longest_edge": 64 * 64 * 8}
        reader = transformers.Qwen2VLVideoProcessor(patch_size=PATCH, size=size)
    reader.save_pretrained(folder)
    return folder


def _llava_onevision():
    tokenizer = tokenizer_with("<image>", "<video>")
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 32,
            "image_size": SIDE,
            "patch_size": PATCH,
            "vision_use_head": False,
        },
        text_config=text_config(tokenizer) | {"model_type": "qwen2"},
        image_token_index=ids("<image>"),
        video_token_index=ids("<video>"),
        image_grid_pinpoints=[[SIDE, SIDE]],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    size = {"height": SIDE, "width": SIDE}
    images = transformers.LlavaOnevisionImageProcessorPil(size=size, image_grid_pinpoints=[[SIDE, SIDE]])
    settings = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": (SIDE // PATCH) ** 2,
        "vision_feature_select_strategy": "full",
        "mark": "<image>",
    }
    return transformers.LlavaOnevisionForConditionalGeneration(config), (settings, images, tokenizer)


#: Encoders of whole videos, which read no text.
ENCODERS = ("videomae", "vivit", "timesformer", "vjepa2")
FRAMES = 8


def video_encoder(family, frames=FRAMES, attention_type="joint_space_time"):
    """A tiny model with random weights, 4 x 4 patches a frame."""
    torch.manual_seed(0)
    common = {
        "hidden_size": 24,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "patch_size": 8,
        "initializer_range": 0.5,  # so that weights are far from equal
    }
    sized = common | {"image_size": 32, "num_frames": frames, "intermediate_size": 32}
    if family == "videomae":
        config = transformers.VideoMAEConfig(**sized, tubelet_size=2)
        model = transformers.VideoMAEForVideoClassification(config)
    elif family == "vivit":
        model = transformers.VivitModel(transformers.VivitConfig(**sized, tubelet_size=[2, 8, 8]))
    elif family == "timesformer":
        model = transformers.TimesformerModel(transformers.TimesformerConfig(**sized, attention_type=attention_type))
    else:
        predictor = {"pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
        config = transformers.VJEPA2Config(
            **common, **predictor, crop_size=32, frames_per_clip=frames, tubelet_size=2, mlp_ratio=2
        )
        model = transformers.VJEPA2Model(config)
    return model.eval()


def save_video_encoder(family, folder):
    """A model and the processor that needs Pillow alone."""
    from transformers.models.videomae.image_processing_pil_videomae import VideoMAEImageProcessorPil

    video_encoder(family).save_pretrained(folder)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    VideoMAEImageProcessorPil(**size).save_pretrained(folder)
    return folder
