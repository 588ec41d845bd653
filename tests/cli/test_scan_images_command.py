"""`attnscope scan MODEL IMAGES/`, as a user types it."""

import csv
import io
import json
import re

import pytest
from transformers import ViTImageProcessorPil

from tests.cli.command import attnscope
from tests.pictures import SIDE, looking_vit, write_pictures


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("images")
    write_pictures(place / "pictures")
    looking_vit(((0, -1), (-1, 0))).save_pretrained(place / "planted")
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(place / "planted")
    return place


@pytest.fixture(scope="module")
def scanned(place):
    return attnscope("scan", "planted", "pictures", "--out", "run", cwd=place)


def test_it_names_heads_by_patches(scanned):
    assert scanned.returncode == 0, scanned.stderr
    assert "1 layer x 2 heads over 3 images of 4 x 4 patches and 1 other token" in scanned.stdout
    assert "Head labels: " in scanned.stdout
    assert re.search(r"0\.0 +0\.7\d\d +left +left", scanned.stdout)
    assert re.search(r"0\.1 +0\.7\d\d +up +up", scanned.stdout)
    assert "previous" not in scanned.stdout


def test_json_and_csv_say_the_same(place, scanned):
    answer = json.loads(attnscope("scan", "planted", "pictures", "--json", "--no-report", cwd=place).stdout)
    assert answer["tables"]["positional"][0]["offset"] in {"left", "up"}
    found = attnscope("scan", "planted", "pictures", "--csv", "--no-report", cwd=place)
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    assert [row["label"] for row in rows] == ["left", "up"]
    assert [row["peak_column_offset"] for row in rows] == ["-1", "0"]
    assert {"same_row", "patch_distance", "class_token", "entropy"} <= set(rows[0])


def test_texts_beside_images_do_not_matter_to_a_model_that_reads_images(place, scanned):
    (place / "pictures" / "README.md").write_text("What this is.")
    found = attnscope("scan", "planted", "pictures", "--json", "--no-report", cwd=place)
    assert found.returncode == 0, found.stderr
    found = attnscope("scan", "bundled", "pictures", "--json", "--no-report", cwd=place)
    assert json.loads(found.stdout)["signature"]["model"]["name"] == "small-mlm"


def test_a_model_of_images_is_refused_without_them(place, refused):
    refused("scan", place / "planted", says="reads pixel_values, not text. Give it images (.png, .jpg, .webp)")
