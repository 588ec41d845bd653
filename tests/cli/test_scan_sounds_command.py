"""`attnscope scan MODEL SOUNDS/`, as a user types it."""

import json

import pytest

from tests.cli.command import attnscope
from tests.sounds import SAID, save_wav2vec2, save_whisper, write_sounds


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("sounds")
    save_whisper(place / "whisper")
    save_wav2vec2(place / "wav2vec2")
    write_sounds(place / "sounds")
    (place / "said.txt").write_text("\n".join(SAID) + "\n")
    return place


def test_whisper_with_transcripts_has_a_page_with_times(place):
    found = attnscope("scan", "whisper", "sounds", "--target", "said.txt", "--out", "run", cwd=place)
    assert found.returncode == 0, found.stderr
    header = "whisper: 2 encoder, 1 decoder and 1 cross-attention layers x 2 heads over 3 windows (125 frames, "
    assert header in " ".join(found.stdout.split())
    assert "The decoder read the transcripts." in found.stdout
    assert "125 of 300 frames in 3 windows are sound" in " ".join(found.stdout.split())
    page = (place / "run" / "report.html").read_text()
    assert '"0.02s"' in page
    again = attnscope("scan", "whisper", "sounds", "--target", "said.txt", "--out", "run", cwd=place)
    assert "already finished" in again.stderr


def test_an_encoder_of_waves_needs_no_tokenizer(place):
    found = attnscope("scan", "wav2vec2", "sounds", "--json", "--no-report", cwd=place)
    answer = json.loads(found.stdout)
    assert answer["tables"]["heads"]


def test_transcripts_beside_sounds_do_not_hide_them(place):
    for number, said in enumerate(SAID):
        (place / "sounds" / f"{number}.txt").write_text(said)
    found = attnscope("scan", "whisper", "sounds", "--no-report", cwd=place)
    assert "The decoder read the transcripts." in found.stdout
    found = attnscope("scan", "bundled", "sounds", "--json", "--no-report", cwd=place)
    assert json.loads(found.stdout)["tables"]["heads"]  # the transcripts, as texts


def test_what_does_not_belong_together_is_refused(place, refused):
    refused("scan", place / "wav2vec2", says="not text. Give it sounds (.wav), or use a model that reads input_ids")
