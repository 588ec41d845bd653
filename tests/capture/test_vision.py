"""Vision encoders and their image processors, from folders and as objects."""

import json

import numpy as np
import pytest

from attnscope.capture.encoders import load_vision_model, reads_images
from attnscope.capture.processors import reader_of
from attnscope.read.images import Image
from attnscope.support.errors import AttnscopeError
from tests.image_models import save_vision_model, vision_model
from tests.tiny_models import tiny


def test_a_model_reads_images_by_its_class_or_by_a_part_of_it(tmp_path):
    for family in ("vit", "clip"):
        assert reads_images(save_vision_model(family, tmp_path / family))
        assert reads_images(vision_model(family)[0])
    assert not reads_images("bundled")
    assert not reads_images(tiny("bert"))


def test_of_a_model_of_images_and_text_the_vision_tower_is_taken():
    model, processor = vision_model("siglip")
    found = load_vision_model(model, processor=processor)
    assert found.tower == "vision_model"
    assert found.model is model.vision_model
    assert load_vision_model(vision_model("vit")[0], processor=processor).tower == ""


def test_what_the_processor_does_is_known_by_its_hash(tmp_path):
    folder = save_vision_model("vit", tmp_path / "vit")
    before = load_vision_model(folder)
    image = Image("a", np.full((40, 60, 3), 128, np.uint8))
    assert before.pixels(image).shape == (1, 3, 32, 32)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.1, 0.1, 0.1]}))
    assert reader_of(load_vision_model(folder).processor) != reader_of(before.processor)


def test_a_processor_that_cannot_be_read_or_is_not_there_is_rejected(tmp_path):
    folder = save_vision_model("vit", tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchProcessor"}')
    with pytest.raises(AttnscopeError, match=r"the image processor of .* cannot be loaded"):
        load_vision_model(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(AttnscopeError, match="has no image processor"):
        load_vision_model(folder)
