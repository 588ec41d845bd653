"""A scan says where a text has a special token that is added anyway, and where a window holds several documents."""

import pytest

import attnscope
from attnscope.measure.stored import notes_of
from tests.measure.generation.causal_models import writer

FIRST, SECOND = "The tide comes in twice a day.", "It goes out again at night."


@pytest.fixture(scope="module")
def causal():
    return writer()


def notes(model, texts, **options):
    model, tokenizer = model if isinstance(model, tuple) else (model, None)
    return notes_of(attnscope.scan(model, texts, tokenizer=tokenizer, statistics="first_token", **options))


@pytest.mark.parametrize(
    ("text", "note", "message"),
    [
        (f"<s>{FIRST}", "doubled", "begin or end with the same special token twice"),
        (f"{FIRST}</s>", "doubled", "begin or end with the same special token twice"),
        (f"{FIRST}</s>{SECOND}", "packed", "seem to contain several documents"),
        (FIRST, None, ""),
    ],
)
def test_special_tokens_added_twice_and_several_documents_in_a_window_are_noted(causal, text, note, message):
    ids = [causal[1](one).input_ids for one in (text, SECOND)]
    for texts in ([text, SECOND], ids):
        found = {name: one for name, one in notes(causal, texts).items() if name in {"doubled", "packed"}}
        assert set(found) == ({note} if note else set())
        assert not note or found[note].startswith(f"1 window of 2 {message}")
    assert "packed" not in notes("bundled", [text])  # an encoder reads pairs of sentences


def test_notes_from_before_a_stop_are_in_the_result(causal, tmp_path):
    class Stopped(Exception):  # noqa: N818 says what it is
        pass

    def stop(progress):
        if progress.details["windows"] >= 2:
            raise Stopped

    texts = [f"<s>{FIRST}</s>{SECOND}", *[FIRST] * 3]
    options = {"out": tmp_path / "run", "batch_size": 1}
    with pytest.raises(Stopped):
        notes(causal, texts, progress=stop, **options)
    told = notes(causal, texts, **options)
    assert told["doubled"].startswith("1 window of 4")
    assert told["packed"].startswith("1 window of 4")
