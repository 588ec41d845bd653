"""Videos beside texts, in the forms in which people keep them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from attnscope import AttnscopeError
from attnscope.read.image_text import pictured_of
from attnscope.read.videos import videos_of
from tests.video_models import frames, write_frames

COUNT = 11  # the tenth sorts before the second by its letters


def video(line):
    [item] = pictured_of([line])
    [only] = item.videos
    return only


def test_frames_of_a_folder_are_sorted_by_their_numbers(tmp_path):
    write_frames(tmp_path / "clip", COUNT)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "<video>", "video": "clip", "fps": 2}))
    [item] = pictured_of(tmp_path / "a.jsonl")
    np.testing.assert_array_equal(item.videos[0].pixels(), frames(COUNT))
    assert item.videos[0].rate == 2


def test_all_forms_are_the_same_video(tmp_path):
    folder, pixels = write_frames(tmp_path / "clip", 3), frames(3)
    forms = [str(folder), [str(folder / f"{number}.png") for number in range(3)], list(pixels), pixels]
    forms += [[Image.fromarray(one) for one in pixels], torch.from_numpy(pixels)]
    for form in forms:
        np.testing.assert_array_equal(video({"text": "<video>", "video": form}).pixels(), pixels)
        np.testing.assert_array_equal(video({"text": "<video>", "videos": [form]}).pixels(), pixels)
    part = {"type": "video", "path": str(folder)}
    for content in ("<video>What?", [{"type": "video"}, "What?"], [part, "What?"]):
        beside = {} if content == [part, "What?"] else {"video": pixels}
        chat = {"messages": [{"role": "user", "content": content}], **beside}
        np.testing.assert_array_equal(video(chat).pixels(), pixels)
        assert next(iter(pictured_of([chat]))).messages[0]["content"] == [
            {"type": "video"},
            {"type": "text", "text": "What?"},
        ]


def test_another_rate_is_another_corpus():
    once, twice = (pictured_of([{"text": "<video>", "video": frames(2), "fps": rate}]) for rate in (1, 2))
    assert once.sha256() != twice.sha256()
    assert once.has_videos


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"video": "a.mp4"}, "a.mp4 is a video file, which attnscope does not decode: give a folder of its frames"),
        ({"video": "gone"}, "there is no folder of frames gone"),
        ({"video": ["gone.png"]}, "there is no image gone.png"),
        ({"videos": [[]]}, "found no frames"),
        ({"video": np.zeros((2, 4, 4))}, "an array of shape"),
        ({"video": frames(2), "fps": 0}, "fps is 0; expected frames a second"),
        ({"video": [*frames(1, 4, 4), *frames(1, 8, 4)]}, "have 4 x 4 and 8 x 4 pixels; expected one size"),
        ({"video": frames(2), "videos": [frames(2)]}, "has both video and videos"),
    ],
)
def test_what_is_no_video_is_rejected(given, message):
    with pytest.raises(AttnscopeError) as caught:
        video({"text": "<video>", **given}).pixels()
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_film_itself_is_rejected(tmp_path):
    (tmp_path / "a.mp4").write_bytes(bytes(9))
    with pytest.raises(AttnscopeError, match=r"a\.mp4 is a video file, .* in a line of JSON Lines"):
        pictured_of(tmp_path / "a.mp4")


def test_an_image_without_a_number_is_no_frame_and_gaps_are_noted(tmp_path):
    folder = write_frames(tmp_path / "clip", 6)
    assert videos_of(folder).notes == {}
    (folder / "3.png").unlink()
    assert videos_of(folder).notes["gaps"] == (
        "Frames seem to be missing, by their numbers, in clip (after 2.png comes 4.png)."
    )
    Image.fromarray(frames(1)[0]).save(folder / "thumbnail.png")
    with pytest.raises(AttnscopeError, match=r"thumbnail\.png has no number, unlike the other frames"):
        videos_of(folder)
