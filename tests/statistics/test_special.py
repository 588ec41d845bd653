"""A scan says where a text has a special token that is added anyway, and where a window holds several documents."""

import pytest

import attnscope
from attnscope.measure.stored import notes_of
from tests.statistics.generation.writers import writer

FIRST, SECOND = "The tide comes in twice a day.", "It goes out again at night."


@pytest.fixture(scope="module")
def causal():
    return writer()


def notes(model, texts, **options):
    model, tokenizer = model if isinstance(model, tuple) else (model, None)
    return notes_of(attnscope.scan(model, texts, tokenizer=tokenizer, statistics="first_token", **options))


@pytest.mark.parametrize("text", [f"<s>{FIRST}", f"{FIRST}</s>"])
@pytest.mark.parametrize("how", ["text", "ids"])
def test_a_special_token_that_is_added_twice_is_said(causal, text, how):
    texts = [text, SECOND] if how == "text" else [causal[1](one).input_ids for one in (text, SECOND)]
    assert notes(causal, texts)["doubled"].startswith("1 window of 2 begin or end with the same special token twice")


@pytest.mark.parametrize("how", ["text", "ids"])
def test_several_documents_in_a_window_are_said(causal, how):
    packed = f"{FIRST}</s>{SECOND}"
    texts = [packed, FIRST] if how == "text" else [causal[1](one).input_ids for one in (packed, FIRST)]
    told = notes(causal, texts)
    assert told["packed"].startswith("1 window of 2 seem to contain several documents")
    assert "doubled" not in told


def test_one_document_a_window_is_not_said(causal):
    assert {"doubled", "packed"}.isdisjoint(notes(causal, [FIRST, SECOND]))


def test_a_pair_of_sentences_in_an_encoder_is_no_packed_row():
    assert "packed" not in notes("bundled", [f"{FIRST}</s>{SECOND}"])


def test_what_was_said_before_a_stop_is_said_at_the_end(causal, tmp_path):
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
