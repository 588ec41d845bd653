"""Scans of texts with videos, held against the matrices that eager attention returns."""

import base64
import io
import itertools
import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.store.arrays import unpacked
from tests.image_text_models import picture, save_pictured_model
from tests.video_models import FAMILIES, frames, save_filmed_model, write_frames

if find_spec("torchvision") is None:
    pytest.skip("pip install 'attnscope[video]' to run these tests", allow_module_level=True)

TEXT, COUNT = "<video> What happens here?", 4


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("filmed")
    write_frames(place / "data" / "clip", COUNT)
    line = {"text": TEXT, "video": "clip"}
    (place / "data" / "lines.jsonl").write_text(json.dumps(line) + "\n")
    for family in FAMILIES:
        save_filmed_model(family, place / family)
    return place


@pytest.fixture(scope="module")
def results(place):
    return {family: attnscope.scan(place / family, place / "data" / "lines.jsonl", device="cpu") for family in FAMILIES}


def eager(folder, text, videos, images=None):
    """What the model reads and its weights, by transformers alone."""
    processor = AutoProcessor.from_pretrained(folder)
    start, end = ("<|vision_start|>", "<|vision_end|>") if "qwen" in folder.name else ("", "")  # as the chat template
    for kind, mark in (("video", processor.video_token), ("image", processor.image_token)):
        text = text.replace(f"<{kind}>", f"{start}{mark}{end}")
    given = dict(
        processor(
            text=[text], videos=videos, images=images, return_tensors="pt", videos_kwargs={"do_sample_frames": False}
        )
    )
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        seen = model(**given, output_attentions=True)
    return model.config, given["input_ids"][0].tolist(), torch.stack(seen.attentions)[:, 0].double()


def groups_by_hand(config, ids, steps, special):
    """Frames share the run of video tokens, of which LLaVA-OneVision's last marks the end; special tokens, text."""
    film = [place for place, token in enumerate(ids) if token == config.video_token_id]
    size = len(film) // steps
    frame = {token: f"frame {1 + place // size}" for place, token in enumerate(film[: steps * size])}
    return [
        frame.get(place, "special" if token in special or place in film else "text") for place, token in enumerate(ids)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_between_frames_and_text_are_those_of_the_matrices(place, results, family):
    found = results[family].isel(window=0)
    steps = COUNT if family == "llava_onevision" else COUNT // 2  # Qwen-VL reads two frames as one
    config, ids, weights = eager(place / family, TEXT, [frames(COUNT)])
    special = set(AutoTokenizer.from_pretrained(place / family).all_special_ids)
    groups = groups_by_hand(config, ids, steps, special)
    names = [*(f"frame {number}" for number in range(1, steps + 1)), "text", "special"]
    assert list(found.group_query.values) == names
    assert set(groups) == set(names)
    for query, key in itertools.product(names, repeat=2):
        rows, columns = ([place for place, group in enumerate(groups) if group == name] for name in (query, key))
        expected = weights[:, :, rows][..., columns].sum(-1).mean(-1)
        measured = found.group_weight.sel(group_query=query, group_key=key)
        np.testing.assert_allclose(measured, expected, rtol=2e-4, atol=1e-6)
    assert int(found.video_frames[0]) == steps
    tokens = sum(group.startswith("frame") for group in groups) // steps
    assert int(found.video_rows[0]) * int(found.video_columns[0]) == tokens


def test_each_frame_is_drawn_with_its_own_tokens(place, tmp_path):
    """Of Qwen-VL the first of two frames that are read as one, as it was given; of LLaVA-OneVision what it reads."""
    for family, shown in (("qwen2_vl", (0, 2)), ("llava_onevision", range(COUNT))):
        run = tmp_path / family
        attnscope.scan(
            place / family, place / "data" / "lines.jsonl", device="cpu", statistics="entropy", out=run, show=[]
        )
        sample = unpacked((run / "sample.npz").read_bytes())
        assert sample.view_name.values.tolist() == [f"video 1 frame {step + 1}" for step in range(len(shown))]
        of, tokens = sample.view_of.values[0], sample.token.values[0]
        assert [tokens[np.flatnonzero(of == view)[0]] for view in range(len(shown))] == [
            f"video 1 frame {step + 1} r0c0" for step in range(len(shown))
        ]
        for picture_of, number in zip(sample.view_picture.values, shown, strict=True):
            drawn = Image.open(io.BytesIO(base64.b64decode(picture_of)))
            apart = [
                np.abs(np.asarray(drawn, float) - np.asarray(Image.fromarray(one).resize(drawn.size), float)).mean()
                for one in frames(COUNT)
            ]
            assert int(np.argmin(apart)) == number


@pytest.mark.parametrize("family", ["qwen2_vl", "llava_onevision"])
def test_one_text_may_have_images_and_videos(place, family):
    line = {
        "messages": [{"role": "user", "content": "<image>Is it in <video>?"}],
        "image": picture(0),
        "videos": [frames(3)],
        "fps": 2,
    }
    found = attnscope.scan(place / family, [line], device="cpu")
    steps = 3 if family == "llava_onevision" else 2
    assert [str(name) for name in found.group_query.values[: 1 + steps]] == [
        "image",
        *(f"frame {step + 1}" for step in range(steps)),
    ]
    assert int(found.image_tokens[0, 0]) > 0
    assert int(found.video_frames[0, 0]) == steps
    shares = found.group_weight.sum("group_key").isel(window=0)
    there = shares.where(found.group_weight.notnull().any("group_key").isel(window=0)).values
    np.testing.assert_allclose(there[np.isfinite(there)], 1, rtol=1e-5)


def test_frames_whose_tokens_mix_are_reported_as_unknown(place, monkeypatch):
    """A tower that mixes frames: each token reads those before it."""
    from transformers import LlavaOnevisionModel

    own = LlavaOnevisionModel.get_video_features

    def mixed(self, *given, **named):
        read = own(self, *given, **named)
        read.pooler_output = read.pooler_output.cumsum(1)
        return read

    monkeypatch.setattr(LlavaOnevisionModel, "get_video_features", mixed)
    found = attnscope.scan(place / "llava_onevision", [{"text": TEXT, "video": frames(3)}], device="cpu")
    assert list(found.group_query.values) == ["video", "text", "special"]
    assert "read several frames" in found.attrs["videos"]


def test_a_text_has_a_mark_for_each_video(place, tmp_path):
    with pytest.raises(AttnscopeError, match=r"found 1 video, and 0 marks in the text\. Write <video>"):
        attnscope.scan(place / "qwen2_vl", [{"text": "None.", "video": frames(2)}], device="cpu")
    save_pictured_model("llava", tmp_path / "llava")
    with pytest.raises(AttnscopeError, match=r"LlavaProcessor reads no videos. Pass frames as images"):
        attnscope.scan(tmp_path / "llava", [{"text": TEXT, "video": frames(2)}], device="cpu")
