"""Windows as a model reads them, one at a time."""

from attnscope.explanation.study import Study, study
from attnscope.intervention.calls import inputs_of
from attnscope.read.windows import Window
from tests.families import tiny
from tests.translation.small_translators import small_model, small_tokenizer

MARKS = {"special": (), "spans": (), "start": 0, "tokens": ()}


def test_token_ids_and_a_model_need_no_tokenizer():
    model = tiny("bert")
    source = study(model, [[5, 6, 7], [8, 9]])
    assert source.mask_id is None
    assert source.documents == ["window 1", "window 2"]
    assert inputs_of(model, source.windows[1])["input_ids"].tolist() == [[8, 9]]
    assert Study(model, [Window((5, 6), source="a", **MARKS)]).documents == ["a"]


def test_targets_are_what_the_decoder_reads():
    model = small_model("bart", len(small_tokenizer()))
    target = Window((1, 7, 8), source="b", **MARKS)
    read = inputs_of(model, Window((5, 6), target=target, source="a", **MARKS))
    assert read["decoder_input_ids"].tolist() == [[1, 7, 8]]
    assert inputs_of(model, (5, 6))["decoder_input_ids"].tolist() == [[5, 6]]
