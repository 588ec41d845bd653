"""Scans of texts with images, held against the matrices that eager attention returns."""

import itertools
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

import attnscope
from attnscope import AttnscopeError, measure_weights
from attnscope.capture.load import Loading
from attnscope.capture.modalities import load_pictured_model
from attnscope.catalogue import function_of
from attnscope.read.image_text import pictured_of
from attnscope.store.arrays import unpacked
from tests.image_models import save_vision_model
from tests.image_text_models import FAMILIES, blue_at, picture, save_looking_llava, save_pictured_model, write_pictured
from tests.test_mixed_lengths import VERBS_OF_TEXTS
from tests.tiny_models import tiny_reader

TEXTS = (
    ("<image> The tide is out.", (0,)),
    ("Two boats: <image> and <image>. Which one lies on the mud?", (1, 2)),
    ("No boat at all.", ()),
)
IMAGES = [picture(number, 32 + 16 * number, 48) for number in range(3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictured")
    write_pictured(place / "data")
    for family in FAMILIES:
        save_pictured_model(family, place / family)
    return place


@pytest.fixture(scope="module")
def looking(tmp_path_factory):
    return save_looking_llava(tmp_path_factory.mktemp("looking") / "llava")


def inputs_of(family, folder, text, images):
    """What the model reads, by transformers alone; by hand where a processor needs torchvision for videos."""
    if family in {"llava", "idefics3"}:
        processor = AutoProcessor.from_pretrained(folder)
        return dict(processor(text=[text], images=images or None, return_tensors="pt"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reader = AutoImageProcessor.from_pretrained(folder, backend="pil")
    tiled = {"crop_to_patches": True} if family == "internvl" else {}
    seen = dict(reader(images, return_tensors="pt", **tiled)) if images else {}
    for tiles in seen.pop("num_patches", torch.zeros(0, dtype=int)).tolist():
        text = text.replace("<image>", f"<img>{'<IMG_CONTEXT>' * (4 * tiles)}</img>", 1)
    for _, rows, columns in seen.get("image_grid_thw", torch.zeros(0, 3)).tolist():
        pads = "<|image_pad|>" * (rows * columns // 4)
        text = text.replace("<image>", f"<|vision_start|>{pads}<|vision_end|>", 1)
    given = dict(tokenizer([text], return_tensors="pt"))
    given.pop("token_type_ids", None)
    if family == "internvl":
        return given | seen
    kinds = (given["input_ids"] == tokenizer.convert_tokens_to_ids("<|image_pad|>")).long()
    return given | seen | {"mm_token_type_ids": kinds}


def groups_by_hand(family, model, given, tokenizer):
    """The group of each token: images run after run, special tokens, text."""
    ids = given["input_ids"][0].tolist()
    special, image = set(tokenizer.all_special_ids), model.config.image_token_id
    if family == "idefics3":  # 5 tiles an image, 6 marks about them, and all between is the processor's
        marks = np.cumsum([token == tokenizer.convert_tokens_to_ids("<fake_token_around_image>") for token in ids])
        return [
            f"image {1 + (mark - 1) // 6}" if token == image else "special" if token in special or mark % 6 else "text"
            for token, mark in zip(ids, marks, strict=True)
        ]
    begins = np.cumsum([token == image != before for before, token in itertools.pairwise([None, *ids])])
    return [
        f"image {number}" if token == image else "special" if token in special else "text"
        for token, number in zip(ids, begins, strict=True)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_statistic_is_that_of_the_matrices(place, family):
    found = attnscope.scan(place / family, place / "data" / "texts.jsonl", device="cpu", band=3)
    tokenizer = AutoTokenizer.from_pretrained(place / family)
    assert found.sizes["layer"] == 2  # of the decoder alone
    model = AutoModelForImageTextToText.from_pretrained(place / family, attn_implementation="eager").eval()
    for number, (text, images) in enumerate(TEXTS):
        given = inputs_of(family, place / family, text, [IMAGES[image] for image in images])
        with torch.no_grad():
            weights = [layer.double() for layer in model(**given, output_attentions=True).attentions]
        assert int(found.length[number]) == weights[0].shape[-1]
        own = found.isel(window=number)
        groups = groups_by_hand(family, model, given, tokenizer)
        special = [group == "special" for group in groups]
        expected = measure_weights(weights, special=[special], band=3).isel(window=0)
        names = [
            name
            for name in expected.data_vars
            if name in found
            and {"layer"} <= set(expected[name].dims)
            and "offset_bin" not in expected[name].dims
            and not {"cluster"} & set(expected[name].dims)
            and name not in {"label", "majority_share", "effective_labels"}
        ]
        assert {"entropy", "profile", "special_tokens", "equal_entropy", "mean_offset", "gini_simpson"} <= set(names)
        for name in names:
            np.testing.assert_allclose(own[name], expected[name], rtol=2e-4, atol=1e-6, err_msg=name)
        assert set(groups) <= set(found.group_query.values)
        for layer, matrix in enumerate(weights):
            for query, key in np.ndindex((found.sizes["group_query"],) * 2):
                rows = [i for i, group in enumerate(groups) if group == found.group_query.values[query]]
                columns = [i for i, group in enumerate(groups) if group == found.group_query.values[key]]
                measured = own.group_weight.values[layer, :, query, key]
                if not rows or not columns:
                    assert np.isnan(measured).all()
                    continue
                by_hand = matrix[0][:, rows][:, :, columns].sum(-1).mean(-1).numpy()
                np.testing.assert_allclose(measured, by_hand, rtol=2e-4, atol=1e-6)


def test_tokens_of_an_image_may_see_later_ones(place):
    """Gemma3 masks its images both ways."""
    save_pictured_model("gemma3", place / "gemma3")
    model = load_pictured_model(place / "gemma3", loading=Loading(device="cpu"))
    found = attnscope.scan(place / "gemma3", place / "data" / "texts.jsonl", device="cpu", band=3)
    assert found.layer_kind.values.tolist() == ["self", "self"]
    assert found.attrs["causality"].startswith("In 2 of 2 layers some tokens")
    assert found.image_rows.values.tolist() == [[2, -1], [2, 2], [-1, -1]]
    alone = AutoModelForImageTextToText.from_pretrained(place / "gemma3", attn_implementation="eager").eval()
    for number, item in enumerate(pictured_of(place / "data" / "texts.jsonl")):
        _, given = model.read(item)
        with torch.no_grad():
            seen = alone(**given, output_attentions=True)
        expected = measure_weights([layer.double() for layer in seen.attentions], band=3).isel(window=0)
        for name in ("entropy", "profile", "equal_entropy", "mean_offset", "offset_spread", "gini_simpson", "outside"):
            np.testing.assert_allclose(
                found[name].isel(window=number), expected[name], rtol=2e-4, atol=1e-6, err_msg=name
            )


def test_rows_and_columns_are_those_of_the_processor(place):
    found = attnscope.scan(place / "qwen2_vl", place / "data" / "texts.jsonl", statistics="entropy")
    assert found.image_rows.values.tolist() == [[2, -1], [3, 4], [-1, -1]]
    assert found.image_columns.values.tolist() == [[3, -1], [3, 3], [-1, -1]]
    assert found.image_tokens.values.tolist() == [[6, -1], [9, 12], [-1, -1]]
    assert "2 x 3, 3 x 3, 4 x 3 (from the processor)" in found.attrs["pictures"]
    found = attnscope.scan(place / "idefics3", place / "data" / "texts.jsonl", statistics="entropy")
    assert found.image_tiles.values.tolist() == [[5, -1], [5, 5], [-1, -1]]


def test_roles_of_a_chat_with_images(place):
    found = attnscope.scan(place / "qwen2_vl", place / "data" / "chats.jsonl", statistics="entropy")
    assert found.group_query.values.tolist() == ["image", "system", "user", "assistant", "tool", "template"]
    sums = np.nansum(found.group_weight.values, -1)
    np.testing.assert_allclose(sums[:, :, :, 2], 1, rtol=1e-5)
    assert np.isnan(found.group_weight.sel(group_query="assistant")[1]).all()  # who says nothing there


@pytest.mark.parametrize("at", [(2, 1), (0, 3)])
def test_a_planted_head_attends_to_the_blue_patch(looking, at, tmp_path):
    text = {"text": "<image> Where is it?", "images": [blue_at(*at)]}
    found = attnscope.scan(looking, [text], statistics="entropy", out=tmp_path / "run", show=[])
    weight = found.group_weight.sel(group_query="text", group_key="image", head=0).item()
    assert weight > 0.999
    sample = unpacked((tmp_path / "run" / "sample.npz").read_bytes())
    names = sample.token.values[0].tolist()
    patch = names.index("image 1 r{}c{}".format(*at))
    assert sample.view_position.values[0, patch] == 4 * at[0] + at[1]
    row = names.index("?")
    starts = sample["count"].values[0, :row].sum()
    keys = sample.key.values[starts : starts + sample["count"].values[0, row]]
    weights = sample.weight.values[starts : starts + sample["count"].values[0, row]]
    assert keys[weights.argmax()] == patch
    assert attnscope.open_run(tmp_path / "run").identical(found)


def test_tokens_that_know_no_place_have_no_map(place, monkeypatch):
    """What a resampler does: every image token is of the whole image."""
    model = load_pictured_model(place / "llava", loading=Loading(device="cpu"))
    projector = model.loaded.model.model.multi_modal_projector
    mixed = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    inner = projector.forward
    monkeypatch.setattr(projector, "forward", lambda states: mixed @ inner(states))
    text = {"text": "<image> What?", "images": [picture(0)]}
    found = attnscope.scan(model.loaded.model, [text], tokenizer=model.processor, statistics="entropy")
    assert found.attrs["pictures"].startswith("No maps over an image: its image tokens do not follow")
    assert found.image_rows.values.tolist() == [[-1]]
    assert found.image_tokens.values.tolist() == [[16]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "<image> and <image>", "image": "0.png"}, "found 1 image, and 2 marks in the text"),
        ({"text": "What is this?", "image": "0.png"}, "found 1 image, and 0 marks in the text"),
        ({"text": "<image>", "image": "none.png"}, "there is no image"),
        ({"text": "<image>", "image": "https://a.b/c.png"}, "is a URL: download it"),
        ({"image": "0.png", "caption": "A boat"}, "expected a text"),
        (
            {"messages": [{"role": "user", "content": "What?"}], "image": "0.png"},
            "has 1 image, but 0 positions for images in its messages",
        ),
        ({"text": "<image>", "image": "0.png", "images": ["1.png"]}, "has both image and images"),
    ],
)
def test_lines_that_do_not_fit_are_rejected(place, line, message):
    path = place / "data" / "bad.jsonl"
    first = {"text": "<image> The tide.", "image": "0.png"}
    path.write_text(json.dumps(first) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(AttnscopeError) as caught:
        attnscope.scan(place / "llava", path)
    assert message in str(caught.value)
    assert "bad.jsonl:2" in str(caught.value)


@pytest.mark.parametrize("verb", [verb for verb in VERBS_OF_TEXTS if verb not in {"patch", "edges"}])
@pytest.mark.parametrize("text", ["What is this?", "<image> What is this?"])
def test_no_verb_measures_a_text_without_its_image(verb, text, tmp_path):
    model, tokenizer = tiny_reader("llama")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "0.png")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text, "image": "0.png"}) + "\n")
    with pytest.raises(AttnscopeError, match=r"rows\.jsonl.*image|image.*rows\.jsonl|texts with images"):
        function_of(verb)(model, tmp_path / "rows.jsonl", tokenizer=tokenizer, **VERBS_OF_TEXTS[verb])


def test_models_and_texts_that_do_not_belong_together_are_rejected(place, tmp_path):
    with pytest.raises(AttnscopeError, match="does not read texts with images"):
        attnscope.scan("bundled", place / "data" / "texts.jsonl")
    assert attnscope.scan("bundled", place / "data" / "texts.jsonl", field="text", limit=1).sizes["window"] == 1
    folder = tmp_path / "bare"
    AutoModelForImageTextToText.from_pretrained(place / "llava").save_pretrained(folder)
    with pytest.raises(AttnscopeError, match="has no processor"):
        attnscope.scan(folder, place / "data" / "texts.jsonl")
    with pytest.raises(AttnscopeError, match=r"window \(--window\) needs texts"):
        attnscope.scan(place / "llava", place / "data" / "texts.jsonl", window=8)
    with pytest.raises(AttnscopeError, match="none of the texts is a chat"):
        attnscope.scan(place / "llava", place / "data" / "texts.jsonl", chat_template="{% for")
    with pytest.raises(AttnscopeError, match="but the model takes 512"):
        attnscope.scan(place / "llava", [{"text": "<image>" * 40, "images": [picture(0)] * 40}])


def test_the_template_is_in_the_signature_wherever_it_is_stored(place, tmp_path):
    """A model's folder whose template was changed gives other numbers, and must not find the run of before."""
    folder = shutil.copytree(place / "qwen2_vl", tmp_path / "model")
    signatures: list[str] = []
    for mark in ("[{{ m.role }}]", "<{{ m.role }}>"):
        changed = (folder / "chat_template.jinja").read_text().replace("[{{ m.role }}]", mark)
        (folder / "chat_template.jinja").write_text(changed)
        found = attnscope.scan(folder, place / "data" / "chats.jsonl", statistics="entropy", limit=1)
        signatures.append(found.signature)
    first, second = map(json.loads, signatures)
    assert first["tokenizer"] != second["tokenizer"]
    assert "pillow" in first["versions"]


def test_a_folder_of_lines_and_images_is_read_as_the_model_reads(place, tmp_path):
    data = write_pictured(tmp_path / "data")
    found = attnscope.scan(place / "llava", data, statistics="entropy", limit=1)
    assert found.reads == "texts with images"
    found = attnscope.scan(save_vision_model("vit", tmp_path / "vit"), data, statistics="entropy")
    assert (found.reads, found.sizes["window"]) == ("images", 3)
    with pytest.raises(AttnscopeError, match="does not read texts with images"):
        attnscope.scan("bundled", data)


@pytest.mark.parametrize("line", [{"image": None}, {"image_path": "0.png"}, {}])
@pytest.mark.parametrize("form", ["a.jsonl", "a.parquet"])
def test_the_mark_of_an_image_that_was_not_found_is_not_text(line, form, place, tmp_path):
    row = {"text": "<image> The tide is out.", **line}
    if form == "a.jsonl":
        (tmp_path / form).write_text(json.dumps(row))
    else:
        table = pa.Table.from_pylist([row | {"image": {"bytes": b"PNG", "path": "0.png"}}])
        parquet.write_table(table, tmp_path / form)
    for family in ("llava", "qwen2_vl"):
        with pytest.raises(AttnscopeError, match="has the mark <image>, but names none"):
            attnscope.scan(place / family, tmp_path / form, statistics="entropy")
    attnscope.scan(place / "llava", tmp_path / form, statistics="entropy", field="text")


def test_a_mark_in_a_text_has_the_tokens_of_the_chat_template_around_it(place, tmp_path):
    folder = shutil.copytree(place / "qwen2_vl", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [*tokenizer.all_special_tokens[-2:], "<begin>", "<end>"]}
    )
    own = "<|image_pad|>"
    tokenizer.chat_template = tokenizer.chat_template.replace(own, f"<begin>{own}<end>")
    tokenizer.save_pretrained(folder)
    model = load_pictured_model(folder)
    item = next(iter(pictured_of([{"text": "See <image>.", "image": IMAGES[0]}])))
    expanded, _ = model.read(item)
    names = tokenizer.convert_ids_to_tokens(list(expanded.ids))
    first, last = names.index("<begin>"), names.index("<end>")
    assert {*names[first + 1 : last]} == {own}
    assert last - first - 1 == names.count(own)
