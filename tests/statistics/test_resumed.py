"""Scans of images, sounds and texts with images that were stopped go on, and end as unbroken ones."""

import pytest
import xarray as xr

import attnscope
from tests.pictured import save_pictured_model, write_pictured
from tests.pictures import save_vision_model, write_pictures
from tests.sounds import save_wav2vec2, write_sounds


def images(place):
    return save_vision_model("vit", place / "model"), write_pictures(place / "data"), {"batch_size": 1}


def sounds(place):
    return save_wav2vec2(place / "model"), write_sounds(place / "data"), {}


def pictured(place):
    return (save_pictured_model("qwen2_vl", place / "model"), write_pictured(place / "data") / "texts.jsonl", {})


class _StoppedError(Exception):
    pass


@pytest.mark.parametrize("kind", [images, sounds, pictured])
def test_a_stopped_run_goes_on_and_ends_the_same(kind, tmp_path):
    model, data, settings = kind(tmp_path)
    settings |= {"device": "cpu", "band": 2}
    steps = []

    def stop(at):
        steps.append(at.share)
        if len(steps) == 2:
            raise _StoppedError

    unbroken = attnscope.scan(model, data, out=tmp_path / "unbroken", **settings)
    with pytest.raises(_StoppedError):
        attnscope.scan(model, data, out=tmp_path / "run", progress=stop, **settings)
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.npz")}
    assert kept
    found = attnscope.scan(model, data, out=tmp_path / "run", **settings)
    assert unbroken.sizes["window"] == 3
    xr.testing.assert_identical(found, unbroken)
    xr.testing.assert_identical(attnscope.open_run(tmp_path / "run"), unbroken)
    assert all(path.read_bytes() == data for path, data in kept.items())
