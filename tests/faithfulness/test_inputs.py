"""Models and texts in all forms."""

from attnscope.capture.load import load_model
from attnscope.explanation.study import Study
from attnscope.intervention.calls import inputs_of
from attnscope.intervention.predictions import texts_under_study
from tests.families import tiny
from tests.translation.small_translators import small_model, small_tokenizer


def test_strings_are_windows_of_their_own_documents():
    source = texts_under_study(texts=["The tide is out.", "A boat lies on the mud."], limit=5)
    assert source.documents == ["text 1", "text 2"]
    assert {len(one) for one in source.windows} == {9, 13}


def test_lines_of_a_file_are_documents(tmp_path):
    (tmp_path / "reactions.txt").write_text("CCO>>CC=O\nCO.CC>>CCC\n")
    source = texts_under_study(texts=tmp_path / "reactions.txt", by_line=True)
    assert source.documents == ["reactions.txt:1", "reactions.txt:2"]


def test_token_ids_and_a_model_need_no_tokenizer():
    model = tiny("bert")
    source = texts_under_study(model, [[5, 6, 7], [8, 9]])
    assert source.windows == [(5, 6, 7), (8, 9)]
    assert source.mask_id is None
    assert source.documents == ["window 1", "window 2"]
    assert inputs_of(model, source.windows[1])["input_ids"].tolist() == [[8, 9]]


def test_targets_are_what_the_decoder_reads():
    model = small_model("bart", len(small_tokenizer()))
    source = texts_under_study(model, ["a b", "th"], targets=["b", "ab"], tokenizer=small_tokenizer())
    read = inputs_of(model, source.windows[0])
    assert read["decoder_input_ids"][0, 0] == 1  # the start token
    assert read["decoder_input_ids"].shape != read["input_ids"].shape
    alone = Study(model, [(5, 6)], name="tiny")
    assert inputs_of(model, alone.windows[0])["decoder_input_ids"].tolist() == [[5, 6]]


def test_a_loaded_model_is_taken_as_it_is():
    loaded = load_model("bundled", device="cpu")
    assert texts_under_study(loaded, "The tide is out.").model is loaded.model
