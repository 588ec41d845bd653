"""`attnscope scan MODEL FILE.jsonl` where lines name images, as a user types it."""

import json

import pytest

from tests.cli.command import attnscope
from tests.pictured import save_pictured_model, write_pictured


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictured")
    save_pictured_model("qwen2_vl", place / "model")
    write_pictured(place / "data")
    return place


def test_images_are_groups_and_shown_on_the_page(place):
    found = attnscope("scan", "model", "data/texts.jsonl", "--out", "run", cwd=place)
    assert found.returncode == 0, found.stderr
    assert "model: 2 layers x 4 heads over 3 windows (74 tokens, 27 from 3 images)" in " ".join(found.stdout.split())
    assert "2 x 3, 3 x 3, 4 x 3" in " ".join(found.stdout.split())
    page = (place / "run" / "report.html").read_text()
    assert '"image 1 r1c2"' in page
    assert page.count("data:image/jpeg") == 3
    again = attnscope("scan", "model", "data/texts.jsonl", "--out", "run", cwd=place)
    assert "already finished" in again.stderr


def test_chats_have_roles_beside_images_and_an_image_that_changed_is_another_run(place):
    def signature():
        found = json.loads(attnscope("scan", "model", "data/chats.jsonl", "--json", "--no-report", cwd=place).stdout)
        assert found["tables"]["groups"]
        return found["run"]

    before, image = signature(), place / "data" / "1.png"
    assert signature() == before
    bytes_ = image.read_bytes()
    image.write_bytes((place / "data" / "0.png").read_bytes())
    try:
        assert signature() != before
    finally:
        image.write_bytes(bytes_)


def test_a_missing_image_is_reported(place, refused):
    (place / "data" / "gone.jsonl").write_text('{"text": "<image>", "image": "gone.png"}\n')
    refused("scan", place / "model", place / "data" / "gone.jsonl", says="gone.jsonl:1: there is no image")
