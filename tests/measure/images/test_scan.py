"""Scans of images, held against the matrices that eager attention returns."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.encoders import load_vision_model
from attnscope.measure.ranking import rank_heads
from attnscope.read.images import images_of
from tests.image_models import BESIDE, FAMILIES, SIDE, looking_vit, save_vision_model, vision_model, write_pictures

BAND = 2
SHIFTS = ((0, -1), (-1, 0), (0, 1), (1, 1))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("images") / "pictures")


def eager(folder, pictures):
    """Weights (image, layer, head, query, key) and pixels, by transformers alone."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    files = sorted(pictures.iterdir())
    pixels = processor([Image.open(file).convert("RGB") for file in files], return_tensors="pt").pixel_values
    with torch.no_grad():
        found = getattr(model, "vision_model", model)(pixels, output_attentions=True)
    return torch.stack(found.attentions, 1).double().numpy()


def by_loops(weights, beside):
    """Statistics of one matrix (query, key) by their definitions, patch by patch."""
    side = 4
    patches = list(itertools.product(range(side), repeat=2))
    inner = weights[beside:, beside:]
    profile = np.zeros((2 * BAND + 1,) * 2)
    pairs = np.zeros_like(profile)
    sums = dict.fromkeys(("row", "column", "distance", "down", "right"), 0.0)
    for (i, (r, c)), (j, (s, d)) in itertools.product(enumerate(patches), repeat=2):
        down, right, weight = s - r, d - c, inner[i, j]
        if max(abs(down), abs(right)) <= BAND:
            profile[down + BAND, right + BAND] += weight
            pairs[down + BAND, right + BAND] += 1
        sums["row"] += weight * (down == 0)
        sums["column"] += weight * (right == 0)
        sums["distance"] += weight * (down**2 + right**2) ** 0.5
        sums["down"] += weight * down
        sums["right"] += weight * right
    held = inner.sum()
    return {
        "patch_profile": profile / pairs,
        "same_row": sums["row"] / len(patches),
        "same_column": sums["column"] / len(patches),
        "patch_distance": sums["distance"] / held,
        "row_offset_mean": sums["down"] / held,
        "column_offset_mean": sums["right"] / held,
        "entropy": -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean(),
        "max_weight": weights.max(-1).mean(),
        "gini_simpson": 1 - (weights**2).sum(-1).mean(),
    } | (
        {"class_token": weights[beside:, 0].mean(), "registers": weights[beside:, 1:beside].sum(-1).mean()}
        if beside
        else {}
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_are_those_of_the_eager_matrices(tmp_path, pictures, family):
    folder = save_vision_model(family, tmp_path / family)
    found = attnscope.scan(folder, pictures, band=BAND, device="cpu")
    weights = eager(folder, pictures)
    beside = BESIDE[family]
    assert found.source.values.tolist() == ["0.png", "1.jpg", "2.webp"]
    assert (found.rows == 4).all()
    assert (found.columns == 4).all()
    assert (found.length == 16 + beside).all()
    equal = by_loops(np.full(weights.shape[-2:], 1 / weights.shape[-1]), beside)
    for place in np.ndindex(weights.shape[:3]):
        for name, value in by_loops(weights[place], beside).items():
            if name in found:
                np.testing.assert_allclose(found[name].values[place], value, rtol=2e-4, atol=2e-6, err_msg=name)
            else:
                assert name in {"registers", "class_token"}
                assert value == pytest.approx(0)
            if f"equal_{name}" in found:
                np.testing.assert_allclose(
                    found[f"equal_{name}"].values[place[:2]], equal[name], rtol=1e-6, err_msg=f"equal_{name}"
                )
    assert {"equal_patch_profile", "equal_patch_distance", "equal_entropy"} <= set(found)
    assert np.ptp(found.patch_profile.mean("window").values) > 0.02, "the weights are far from equal"


def test_images_are_taken_as_objects_arrays_and_pixel_values(pictures):
    model, processor = vision_model("vit")
    images = [Image.open(file).convert("RGB") for file in sorted(pictures.iterdir())]
    given = (
        pictures,
        images,
        [np.asarray(image) for image in images],
        processor(images, return_tensors="pt"),
        processor(images, return_tensors="pt").pixel_values,
    )
    found = [attnscope.scan(model, one, tokenizer=processor, batch_size=3) for one in given]
    one_by_one = attnscope.scan(model, pictures, tokenizer=processor, batch_size=1)
    for other in found:
        np.testing.assert_allclose(one_by_one.patch_profile, other.patch_profile, rtol=1e-5)
    assert found[1].source.values.tolist() == ["image 1", "image 2", "image 3"]


def test_planted_heads_attend_where_they_must_and_get_their_names():
    planted = attnscope.scan(looking_vit(SHIFTS), torch.zeros(2, 3, SIDE, SIDE), device="cpu")
    for head, (down, right) in enumerate(SHIFTS):
        weight = planted.patch_profile.sel(row_offset=down, column_offset=right).values[:, 0, head]
        np.testing.assert_allclose(weight, 1, atol=1e-3)
    # patches at the edge, without the neighbour, attend to the other edge: 12 go 1 step and 4 go 3 steps back
    np.testing.assert_allclose(planted.column_offset_mean[:, 0, [0, 2]], 0, atol=1e-3)
    np.testing.assert_allclose(planted.patch_distance[:, 0, :3], (12 * 1 + 4 * 3) / 16, rtol=1e-3)
    np.testing.assert_allclose(planted.same_row[:, 0, [0, 2]], 1, rtol=1e-3)
    np.testing.assert_allclose(planted.same_column[:, 0, 1], 1, rtol=1e-3)
    names = ["left", "up", "right", "1 down 1 right"]
    assert planted.cluster.values[planted.label_share.argmax("cluster").values[0]].tolist() == names
    assert "left: 1" in planted.labels
    ranked = rank_heads(planted)["positional"]
    assert {(row["head"], row["offset"]) for row in ranked} == set(enumerate(names))


def test_heads_of_random_weights_near_zero_have_no_kind():
    model = looking_vit(SHIFTS, sharpness=0.0)
    found = attnscope.scan(model, torch.zeros(2, 3, SIDE, SIDE))
    assert found.labels == "No head labels beyond chance: uniform: 4."
    np.testing.assert_allclose(found.patch_profile, found.equal_patch_profile.expand_dims(head=4, axis=2))


def test_a_model_of_windows_is_measured_in_its_own_rows_with_a_note(pictures):
    model, processor = vision_model("swin")
    found = attnscope.scan(model, pictures, tokenizer=processor)
    assert "No statistics of rows and columns of patches for SwinModel" in found.attrs["patches"]
    assert "windows of an image" in found.attrs["patches"]
    assert "patch_profile" not in found
    assert "label" not in found
    pixels = processor([Image.open(file) for file in sorted(pictures.iterdir())], return_tensors="pt").pixel_values
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(pixels, output_attentions=True).attentions
    for layer, own in enumerate(weights):  # (window, head, query, key), windows of an image after one another
        entropy = torch.special.entr(own).sum(-1).mean(-1).unflatten(0, (3, -1)).mean(1)
        heads = entropy.shape[1]
        np.testing.assert_allclose(found.entropy.values[:, layer, :heads], entropy, rtol=1e-4)


def test_only_the_vision_tower_is_measured_and_a_pooling_head_is_reported(pictures):
    for family in ("clip", "siglip"):
        model, processor = vision_model(family)
        found = attnscope.scan(model, pictures, tokenizer=processor)
        assert f"Only the vision tower of {type(model).__name__} is measured (vision_model" in found.attrs["tower"]
        assert ("pooling head" in found.attrs.get("pooling", "")) == (family == "siglip")


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        (None, {"window": 8}, "window (--window) needs texts"),
        (None, {"band": 9}, "band (--band) is 9; in images of 4 x 4 patches the largest offset is 3"),
        (None, {"show": [(0, 99)]}, "there is no head 0.99 (show, --show): layers go from 0 to"),
        (None, {"statistics": "profile"}, "there is no statistic 'profile' of images: the nearest is patch_profile"),
        (None, {"model": "bundled", "tokenizer": None}, "reads text, not images"),
        (None, {"tokenizer": None}, "without its image processor"),
        (torch.zeros(1, 3, 40, 40), {}, "cannot read image 1"),
        (torch.full((1, 3, SIDE, SIDE), torch.nan), {}, "NaN or infinity"),
        (
            [torch.zeros(3, SIDE, SIDE), torch.zeros(3, SIDE // 2, SIDE)],
            {},
            "ViTForImageClassification cannot read image 2: ",
        ),
        (
            [torch.zeros(3, SIDE, SIDE), torch.zeros(1, SIDE, SIDE)],
            {},
            "ViTForImageClassification cannot read image 2: ",
        ),
    ],
)
def test_settings_and_images_that_do_not_fit_are_rejected(pictures, images, settings, message):
    model, processor = vision_model("vit")
    given = {"model": model, "texts": pictures if images is None else images, "tokenizer": processor} | settings
    with pytest.raises(AttnscopeError) as caught:
        attnscope.scan(**given)
    assert message in str(caught.value)


def test_rows_of_a_low_image_are_not_taken_as_channels(tmp_path):
    folder = save_vision_model("vit", tmp_path / "vit")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 40, 3), np.uint8)
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    expected = processor(Image.fromarray(pixels), return_tensors="pt").pixel_values
    found = load_vision_model(folder).pixels(next(iter(images_of(pixels))))
    np.testing.assert_array_equal(found, expected)
