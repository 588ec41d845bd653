"""`attnscope scan MODEL CLIPS/`, as a user types it."""

import json

from tests.cli.command import attnscope
from tests.filmed import FRAMES, save_video_encoder, write_frames


def test_it_measures_between_frames_and_knows_its_run_again(tmp_path):
    save_video_encoder("videomae", tmp_path / "videomae")
    write_frames(tmp_path / "clips" / "boat", FRAMES)
    write_frames(tmp_path / "clips" / "waves", FRAMES)
    first = attnscope("scan", "videomae", "clips", "--out", "run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "2 layers x 2 heads over 2 videos (128 tokens)" in first.stdout
    assert "frames 1-2 r0c0" in (tmp_path / "run" / "report.html").read_text()
    again = attnscope("scan", "videomae", "clips", "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["tables"]["groups"]
    (tmp_path / "clips" / "boat" / "0.png").unlink()
    other = attnscope("scan", "videomae", "clips", "--out", "run", cwd=tmp_path)
    assert other.returncode == 2
    refused = attnscope("explain", "videomae", "clips", cwd=tmp_path)
    assert refused.returncode == 2
    assert "found videos, and explain reads only texts" in refused.stderr
