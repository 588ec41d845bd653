"""Runs of images, sounds and texts with images: resumed as unbroken, and signed by all that changes numbers."""

import json

import pytest
import xarray as xr

import attnscope
from tests.image_models import save_vision_model, write_pictures
from tests.image_text_models import save_pictured_model, write_pictured
from tests.speech_models import SAID, save_whisper, write_sounds

_ANY = [{"band": 1}, {"limit": 2}, {"statistics": "max_weight"}, {"dtype": "float64"}]


def images(place):
    """A model, data, a setting of its processor, and settings of the scan, each of which changes numbers."""
    return save_vision_model("vit", place / "model"), write_pictures(place / "data"), ("image_mean", [0.1] * 3), _ANY


def sounds(place):
    more = [{"targets": list(SAID)}, {"targets": [*SAID[:2], "No."]}]
    return save_whisper(place / "model"), write_sounds(place / "data"), ("n_fft", 256), [{"band": 1}, *more]


def texts_with_images(place):
    data = write_pictured(place / "data") / "texts.jsonl"
    more = [{"groups": "types"}, {"groups": lambda tokens: ["a"] * len(tokens)}]
    return save_pictured_model("llava", place / "model"), data, ("image_mean", [0.1] * 3), [{"band": 1}, *more]


KINDS = [images, sounds, texts_with_images]


@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_numbers_changes_the_signature(kind, tmp_path):
    model, data, (name, value), settings = kind(tmp_path)

    def signature(**more):
        given = {"statistics": "entropy", "band": 2, "device": "cpu"} | more
        return attnscope.scan(model, data, **given).signature

    found = [signature(), *(signature(**one) for one in settings)]
    file = model / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    found.append(signature())
    assert len(set(found)) == len(found)
    assert signature() == found[-1]


class _StoppedError(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_resumes_and_ends_the_same(kind, tmp_path):
    model, data, *_ = kind(tmp_path)
    settings = {"device": "cpu", "band": 2} | ({"batch_size": 1} if kind is images else {})
    steps = []

    def stop(at):
        steps.append(at.share)
        if len(steps) == 2:
            raise _StoppedError

    unbroken = attnscope.scan(model, data, out=tmp_path / "unbroken", **settings)
    with pytest.raises(_StoppedError):
        attnscope.scan(model, data, out=tmp_path / "run", progress=stop, **settings)
    stored = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.npz")}
    assert stored
    found = attnscope.scan(model, data, out=tmp_path / "run", **settings)
    assert unbroken.sizes["window"] == 3
    xr.testing.assert_identical(found, unbroken)
    xr.testing.assert_identical(attnscope.open_run(tmp_path / "run"), unbroken)
    assert all(path.read_bytes() == data for path, data in stored.items())
