"""Images as a corpus: what is taken, what is refused, and what their hash stands for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attnscope.read.images import images_of
from attnscope.support.errors import AttnscopeError
from tests.image_models import write_pictures

BLACK = np.zeros((8, 8, 3), np.uint8)


def test_text_is_no_image(tmp_path):
    (tmp_path / "a.txt").write_text("The tide is out.")
    for given in (None, "a", ["a", "b"], [tmp_path], tmp_path / "a.txt", [[1, 2]], torch.ones(2, 3), Path("-")):
        assert images_of(given) is None


def test_a_folder_gives_its_images_by_name(tmp_path):
    folder = write_pictures(tmp_path / "pictures")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "notes.pdf").write_bytes(b"")
    images = images_of(folder)
    assert [(image.name, image.pixels.shape) for image in images] == [
        ("0.png", (40, 48, 3)),
        ("1.jpg", (48, 48, 3)),
        ("2.webp", (56, 48, 3)),
    ]
    assert not images.beside_text
    (folder / "README.md").write_text("What this is.")
    assert images_of(folder).beside_text


def test_the_hash_depends_on_names_and_pixels(tmp_path):
    folder = write_pictures(tmp_path / "pictures", count=2)
    one = images_of(folder).sha256()
    assert images_of([folder / "0.png", folder / "1.jpg"]).sha256() == one
    assert images_of([folder / "1.jpg", folder / "0.png"]).sha256() != one
    assert images_of(BLACK).sha256() != images_of(BLACK + 1).sha256()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([BLACK, "a text"], "item 2 is 'a text', which is not an image"),
        ([BLACK, torch.zeros(3, 8, 8)], "found both pixel_values and images"),
        (np.zeros((8, 8, 4), np.uint8), "of shape (8, 8, 4) and type uint8; expected an image"),
        (np.zeros((8, 8, 3)), "of shape (8, 8, 3) and type float64; expected an image"),
    ],
)
def test_what_is_no_image_is_rejected(given, message):
    with pytest.raises(AttnscopeError) as caught:
        images_of(given)
    assert message in str(caught.value)


def test_a_broken_file_and_one_that_changes_are_rejected(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(AttnscopeError, match="cannot be read as an image") as caught:
        next(iter(images_of(tmp_path / "broken.png")))
    assert " at 0x" not in str(caught.value)
    folder = write_pictures(tmp_path / "pictures", count=1)
    images = images_of(folder)
    images.sha256()
    Image.new("RGB", (8, 8)).save(folder / "0.png")
    with pytest.raises(AttnscopeError, match="changed while it was being read"):
        next(iter(images))


def test_without_pillow_the_message_says_what_to_install(tmp_path, monkeypatch):
    images = images_of(write_pictures(tmp_path / "pictures", count=1))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(AttnscopeError, match=r"pip install 'attnscope\[images\]'"):
        next(iter(images))


def test_transparent_and_grey_images_become_rgb(tmp_path):
    for mode in ("RGBA", "L", "P", "1"):
        (image,) = images_of(Image.new(mode, (8, 8)))
        assert image.pixels.shape == (8, 8, 3)
    grey = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)  # of 16 bits
    Image.fromarray(grey).save(tmp_path / "grey.png")
    for given in (tmp_path / "grey.png", Image.fromarray(grey)):
        (image,) = images_of(given)
        np.testing.assert_allclose(image.pixels, np.repeat((grey / 257)[..., None], 3, -1), atol=0.51)
    with pytest.raises(AttnscopeError, match="without a known value for white"):
        images_of(Image.fromarray(np.ones((8, 8), np.float32)))


def test_an_image_is_the_same_as_a_file_and_as_an_object(tmp_path):
    turned = Image.fromarray(np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3))
    exif = turned.getexif()
    exif[274] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    (file,) = images_of(tmp_path / "turned.png")
    with Image.open(tmp_path / "turned.png") as opened:
        (given,) = images_of(opened)
    assert file.pixels.shape == (16, 8, 3)  # what the camera turned is turned back
    np.testing.assert_array_equal(file.pixels, given.pixels)


def test_pixel_values_of_any_float_are_taken():
    values = torch.arange(3 * 8 * 8).reshape(1, 3, 8, 8) / 192
    for kind in (torch.bfloat16, torch.float16, torch.float64):
        images = images_of(values.to(kind))
        (image,) = images
        assert torch.equal(image.pixels, values.to(kind)[0].to(image.pixels.dtype))
        assert len(images.sha256()) == 64


def test_two_files_of_one_name_are_two_images(tmp_path):
    for folder in ("a", "b"):
        write_pictures(tmp_path / folder, count=1)
    for given in ([tmp_path / "a", tmp_path / "b"], [tmp_path / "a" / "0.png", tmp_path / "b" / "0.png"]):
        assert [image.name for image in images_of(given)] == ["0.png", "0.png (2) (repeats 0.png)"]


def test_a_small_file_of_many_pixels_is_not_decoded(tmp_path):
    Image.new("1", (8_000, 8_000)).save(tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size < 20_000
    with pytest.raises(AttnscopeError, match="has 64 megapixels; expected at most 50"):
        list(images_of(tmp_path))


def test_files_of_other_types_are_counted(tmp_path):
    folder = write_pictures(tmp_path / "pictures")
    (folder / "a.tiff").write_bytes(b"")
    assert images_of(folder).notes["skipped_files"].endswith("were skipped: .tiff 1.")
