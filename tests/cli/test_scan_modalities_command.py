"""`attnscope scan` of images, videos, sounds and texts with images, as a user types it."""

import csv
import io
import json
import re

from transformers import ViTImageProcessorPil

from tests.cli.command import attnscope
from tests.image_models import SIDE, looking_vit, write_pictures
from tests.image_text_models import save_pictured_model, write_pictured
from tests.speech_models import save_wav2vec2, write_sounds
from tests.video_models import FRAMES, save_video_encoder, write_frames


def scan(*words, cwd):
    found = attnscope("scan", *words, cwd=cwd)
    assert found.returncode == 0, found.stderr
    return " ".join(found.stdout.split()), found


def test_images_name_heads_by_patches(tmp_path, refused):
    write_pictures(tmp_path / "pictures")
    looking_vit(((0, -1), (-1, 0))).save_pretrained(tmp_path / "planted")
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(tmp_path / "planted")
    printed, _ = scan("planted", "pictures", "--out", "run", cwd=tmp_path)
    assert "1 layer x 2 heads over 3 images of 4 x 4 patches and 1 other token" in printed
    assert re.search(r"0\.0 +left +left +0\.7\d", printed)
    assert re.search(r"0\.1 +up +up +0\.7\d", printed)
    assert "previous" not in printed
    _, found = scan("planted", "pictures", "--csv", "--no-report", "--out", "run", cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    assert [row["label"] for row in rows] == ["left", "up"]
    assert [row["peak_column_offset"] for row in rows] == ["-1", "0"]
    assert {"same_row", "patch_distance", "class_token", "entropy"} <= set(rows[0])
    (tmp_path / "pictures" / "README.md").write_text("What this is.")  # is no image, but a text
    scan("planted", "pictures", "--no-report", "--out", "run", cwd=tmp_path)
    _, found = scan("bundled", "pictures", "--json", "--no-report", cwd=tmp_path)
    assert json.loads(found.stdout)["signature"]["model"]["name"] == "small-mlm"
    refused("scan", tmp_path / "planted", says="reads pixel_values, not text. Give it images (.png, .jpg, .webp)")


def test_videos_are_measured_between_frames_and_their_run_is_known_again(tmp_path):
    save_video_encoder("videomae", tmp_path / "videomae")
    write_frames(tmp_path / "clips" / "boat", FRAMES)
    write_frames(tmp_path / "clips" / "waves", FRAMES)
    printed, _ = scan("videomae", "clips", "--out", "run", cwd=tmp_path)
    assert "2 layers x 2 heads over 2 videos (128 tokens in all)" in printed
    assert "frames 1-2 r0c0" in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "clips" / "boat" / "0.png").unlink()
    assert attnscope("scan", "videomae", "clips", "--out", "run", cwd=tmp_path).returncode == 2
    rejected = attnscope("explain", "videomae", "clips", cwd=tmp_path)
    assert rejected.returncode == 2
    assert "found videos, and explain reads only texts" in rejected.stderr


def test_sounds_have_a_page_with_times(tmp_path):
    """Of a model that has no tokenizer."""
    save_wav2vec2(tmp_path / "wav2vec2")
    write_sounds(tmp_path / "sounds")
    printed, _ = scan("wav2vec2", "sounds", "--out", "run", cwd=tmp_path)
    assert "wav2vec2: 2 layers x 2 heads over 3 windows" in printed
    assert '"0.02s"' in (tmp_path / "run" / "report.html").read_text()


def test_images_in_texts_are_groups_and_shown_on_the_page(tmp_path):
    save_pictured_model("qwen2_vl", tmp_path / "model")
    write_pictured(tmp_path / "data")
    words = ("model", "data/texts.jsonl", "--out", "run")
    printed, _ = scan(*words, cwd=tmp_path)
    assert "model: 2 layers x 4 heads over 3 windows (80 tokens in all, 27 from 3 images)" in printed
    assert "2 x 3, 3 x 3, 4 x 3" in printed
    page = (tmp_path / "run" / "report.html").read_text()
    assert '"image 1 r1c2"' in page
    assert page.count("data:image/jpeg") == 3
    assert "already finished" in scan(*words, cwd=tmp_path)[1].stderr
