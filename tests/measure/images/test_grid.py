"""Which token is which patch: found by what changes when the pixels of a patch do."""

import pytest
import torch
from transformers import BeitConfig, BeitModel, DeiTConfig, DeiTModel, PvtConfig, PvtModel, ViTConfig, ViTModel

from attnscope.measure.geometry import Grid, grid_of
from tests.image_models import vision_model

SMALL = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.mark.parametrize(
    ("family", "start", "class_token"), [("vit", 1, 0), ("dinov2", 4, 0), ("clip", 1, 0), ("siglip", 0, None)]
)
def test_patches_follow_class_token_and_registers(family, start, class_token):
    model = vision_model(family)[0]
    model = getattr(model, "vision_model", model)
    assert grid_of(model, torch.zeros(1, 3, 32, 32)) == Grid(4, 4, start, 16 + start, class_token)


def test_registers_oblong_images_and_a_bias_of_positions_disturb_nothing():
    distilled = grid_of(DeiTModel(DeiTConfig(**SMALL)).eval(), torch.zeros(1, 3, 32, 32))
    assert distilled.names[:3] == ("[class]", "[register 1]", "r0c0")
    oblong = ViTConfig(**SMALL | {"image_size": (16, 32), "patch_size": (8, 4)})
    grid = grid_of(ViTModel(oblong).eval(), torch.zeros(1, 3, 16, 32))
    assert (grid.rows, grid.columns, grid.names[-1]) == (2, 8, "r1c7")
    biased = BeitModel(BeitConfig(**SMALL, use_relative_position_bias=True)).eval()
    grid = grid_of(biased, torch.zeros(1, 3, 32, 32))
    assert (grid.rows, grid.start) == (4, 1)


class Transposed(ViTModel):
    """Patches column by column."""

    def forward(self, pixel_values):
        return super().forward(pixel_values.transpose(2, 3))


class Shared(ViTModel):
    """Pixels of each patch reach all tokens."""

    def forward(self, pixel_values):
        return super().forward(pixel_values + pixel_values.mean((2, 3), keepdim=True))


@pytest.mark.parametrize("maker", [Transposed, Shared])
def test_what_is_not_one_token_a_patch_row_by_row_is_reported(maker):
    reason = grid_of(maker(ViTConfig(**SMALL)).eval(), torch.zeros(1, 3, 32, 32))
    assert "a patch is not one token, or patches are not in row order" in reason


def test_windows_and_missing_sizes_are_reported():
    assert grid_of(vision_model("swin")[0], torch.zeros(1, 3, 32, 32)) == (
        "its first layer attends in 4 windows of an image"
    )
    one = {"num_encoder_blocks": 1, "depths": [1], "hidden_sizes": [8], "num_attention_heads": [1]}
    more = {"sequence_reduction_ratios": [2], "patch_sizes": [4], "strides": [4], "mlp_ratios": [2]}
    pooling = PvtModel(PvtConfig(image_size=32, **one, **more)).eval()
    assert grid_of(pooling, torch.zeros(1, 3, 32, 32)) == "its config has no patch_size"
