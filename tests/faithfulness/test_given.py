"""Models and texts in all the forms that they are given in."""

import pytest

from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.explanation.study import study as mechanism_study
from attnscope.intervention.inputs import InterventionInput, input_of, inputs_of
from tests.families import tiny
from tests.translation.small_translators import small_model, small_tokenizer


def test_strings_are_windows_of_their_own_documents():
    given = input_of(texts=["The tide is out.", "A boat lies on the mud."], limit=5)
    assert given.documents == ["text 1", "text 2"]
    assert {len(one) for one in given.windows} == {9, 13}


def test_lines_of_a_file_are_documents(tmp_path):
    (tmp_path / "reactions.txt").write_text("CCO>>CC=O\nCO.CC>>CCC\n")
    given = input_of(texts=tmp_path / "reactions.txt", by_line=True)
    assert given.documents == ["reactions.txt:1", "reactions.txt:2"]


def test_token_ids_and_a_model_need_no_tokenizer():
    model = tiny("bert")
    given = input_of(model, [[5, 6, 7], [8, 9]])
    assert given.windows == [(5, 6, 7), (8, 9)]
    assert given.mask_id is None
    assert given.documents == ["window 1", "window 2"]
    assert inputs_of(model, given.windows[1])["input_ids"].tolist() == [[8, 9]]


def test_a_study_and_what_was_given_bring_their_texts():
    study = mechanism_study("bundled", limit=3)
    given = input_of(study, limit=2)
    assert given.model is study.model
    assert [one.ids for one in given.windows] == [one.ids for one in study.windows[:2]]
    assert input_of(given) is given
    for one in (study, given):
        with pytest.raises(AttnscopeError, match="found a study and texts beside it"):
            input_of(one, ["The tide is out."])


def test_targets_are_what_the_decoder_reads():
    model = small_model("bart", len(small_tokenizer()))
    given = input_of(model, ["a b", "th"], targets=["b", "ab"], tokenizer=small_tokenizer())
    read = inputs_of(model, given.windows[0])
    assert read["decoder_input_ids"][0, 0] == 1  # the start token
    assert read["decoder_input_ids"].shape != read["input_ids"].shape
    alone = InterventionInput(model, [(5, 6)], "tiny", None)
    assert inputs_of(model, alone.windows[0])["decoder_input_ids"].tolist() == [[5, 6]]


def test_a_loaded_model_is_taken_as_it_is():
    loaded = load_model("bundled", device="cpu")
    assert input_of(loaded, "The tide is out.").model is loaded.model
