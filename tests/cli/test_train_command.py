"""`attnscope train` says what a folder holds and how far it goes on."""

import pytest

from attnscope.comparison import _test_text as held_out
from tests.cli.command import attnscope

SMALL = (
    *(
        "--task-pairs",
        "100",
        "--vocabulary",
        "320",
        "--encoder-width",
        "4",
        "--decoder-width",
        "8",
        "--warmup",
        "0",
    ),
    *("--schedule", "constant", "--average", "1", "--log-every", "1", "--device", "cpu", "--out", "model"),
)


@pytest.fixture(scope="module", autouse=True)
def few_sentences():
    """Of those that are translated at the end, to show what was learned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "HELD_OUT", 20)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("train")
    found = attnscope("train", *SMALL, "--updates", "2", cwd=place)
    assert found.returncode == 0, found.stderr
    return place


def test_one_that_goes_on_says_to_where(finished):
    again = attnscope("train", *SMALL, "--updates", "2", cwd=finished)
    assert "model holds a finished training of 2 updates\n" in again.stderr
    further = attnscope("train", *SMALL, "--updates", "4", cwd=finished)
    assert further.returncode == 0, further.stderr
    assert "model holds a finished training of 2 updates: it goes on to 4\n" in further.stderr


def test_a_change_that_is_refused_is_all_that_is_said(finished):
    found = attnscope("train", *SMALL, "--updates", "6", "--decoder-width", "6", cwd=finished)
    assert found.returncode == 2
    assert "decoder_width = 8; found 6" in found.stderr
    assert "holds a finished training" not in found.stderr
