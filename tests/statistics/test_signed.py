"""Scans of images, sounds and texts with images that differ in what changes numbers have other signatures."""

import json

import pytest

import attnscope
from tests.pictured import save_pictured_model, write_pictured
from tests.pictures import save_vision_model, write_pictures
from tests.sounds import SAID, save_whisper, write_sounds

_ANY = [{"band": 1}, {"limit": 2}, {"statistics": "max_weight"}, {"dtype": "float64"}]


def images(place):
    model = save_vision_model("vit", place / "model")
    return model, write_pictures(place / "data"), ("image_mean", [0.1] * 3), []


def sounds(place):
    model = save_whisper(place / "model")
    more = [{"targets": list(SAID)}, {"targets": [*SAID[:2], "No."]}]
    return model, write_sounds(place / "data"), ("n_fft", 256), more


def pictured(place):
    model = save_pictured_model("llava", place / "model")
    more = [{"groups": "types"}, {"groups": lambda tokens: ["a"] * len(tokens)}]
    return model, write_pictured(place / "data") / "texts.jsonl", ("image_mean", [0.1] * 3), more


@pytest.mark.parametrize("kind", [images, sounds, pictured])
def test_what_changes_numbers_changes_the_signature(kind, tmp_path):
    model, data, (name, value), more = kind(tmp_path)

    def signature(**settings):
        asked = {"statistics": "entropy", "band": 2, "device": "cpu"} | settings
        return attnscope.scan(model, data, **asked).signature

    found = [signature(), *(signature(**one) for one in (*_ANY, *more))]
    file = model / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    found.append(signature())
    assert len(set(found)) == len(found)
    assert signature() == found[-1]
