"""Objects that are read as texts or token ids, and the messages about those that are not."""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from transformers import AutoTokenizer

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.explanation.study import equal_windows, study
from attnscope.read.chats import Chats, are_chats
from attnscope.read.encoded import EncodedTexts, texts_and_targets, texts_of, windows_of
from attnscope.read.sources import Spool, as_list
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError

TEXTS = ["The tide comes in.", "Bread rises because yeast breathes out: 猫."]


class Column:
    """As the column of a data set: strings one at a time, and nothing else in common with a list."""

    def __init__(self, values):
        self._values = values

    def __getitem__(self, index):
        return self._values[index]

    def __len__(self):
        return len(self._values)


def rows_of(encoded):
    """Token ids without padding."""
    pairs = zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    return [[token for token, real in zip(*pair, strict=True) if real] for pair in pairs]


@pytest.fixture(scope="module")
def measured():
    return attnscope.scan(texts=TEXTS, device="cpu")


@pytest.mark.parametrize(
    "given",
    [
        TEXTS,
        tuple(TEXTS),
        (text for text in TEXTS),
        dict.fromkeys(TEXTS).keys(),
        pd.Series(TEXTS, index=[7, 3]),
        pd.Series(TEXTS, dtype="string"),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        Column(TEXTS),
    ],
    ids=lambda given: type(given).__name__,
)
def test_strings_in_any_container_are_texts(given):
    corpus = Corpus.from_sources(given)
    for _ in range(2):
        assert [text.content for text in corpus] == TEXTS
        assert {type(text.content) for text in corpus} == {str}
    assert [text.content for text in Corpus.from_sources(np.array(TEXTS[0]))] == TEXTS[:1]


ROWS = [{"body": text, "topic": topic} for text, topic in zip(TEXTS, ("sea", "bread"), strict=True)]


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        (row for row in ROWS),
        pd.DataFrame(ROWS, index=[7, 3]),
        datasets.Dataset.from_list(ROWS),
        datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
    ],
    ids=lambda given: type(given).__name__,
)
def test_rows_of_a_table_are_texts_grouped_by_a_field(measured, given):
    found = attnscope.scan(texts=given, field="body", by="topic", device="cpu")
    for name in measured.data_vars:
        np.testing.assert_array_equal(found[name], measured[name], err_msg=str(name))
    assert found["by"].to_numpy().tolist() == ["sea", "bread"]
    assert found["source"].to_numpy().tolist() == ["text 1", "text 2"]


def test_rows_may_be_chats_or_token_ids(tokenizer):
    chats = [[{"role": "user", "content": text}] for text in TEXTS]
    table = datasets.Dataset.from_dict({"messages": chats})
    assert are_chats(as_list(table))
    assert [text.content for text in Chats(as_list(table))._corpus] == [text.content for text in Chats(chats)._corpus]
    ids = tokenizer(TEXTS)["input_ids"]
    assert texts_of(datasets.Dataset.from_dict({"input_ids": ids})).rows == [tuple(row) for row in ids]


def test_generators_are_read_once_and_give_the_texts_of_their_lists(tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.read.sources.Spool", lambda: Spool(in_memory=10))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file, taken = tmp_path / "a.txt", []
    file.write_text("And goes out.")
    lines = [*(f"The tide comes in {number} times: 猫." for number in range(50)), "", file]
    once = Corpus.from_sources(taken.append(one) or one for one in lines)
    whole = Corpus.from_sources(lines)
    assert list(zip(once, once, strict=True)) == [(text, text) for text in whole]
    assert taken == lines
    assert once.sha256() == whole.sha256()
    assert list(tmp_path.iterdir()) == [file]  # what is stored on disk has no name: it goes with the process
    texts, targets = texts_and_targets((one for one in TEXTS), (one for one in [file, "more"]))
    assert [text.content for text in texts] == TEXTS
    assert [text.content for text in targets] == ["And goes out.", "more"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": TEXTS, "label": [0, 1]}, r"of type dict with the keys or columns 'text', 'label'; .*give one"),
        (pd.DataFrame({"body": TEXTS}), r"row 1: no field 'text'; found the fields 'body'"),
        (pd.DataFrame({"text": [*TEXTS, None]}), r"row 3: field 'text' has a JSON n"),
        (xr.Dataset({"a": ("n", TEXTS)}), "of type Dataset with the keys or columns 'a'"),
        (b"words", r"the texts are bytes; .*\.decode"),
        ({"a text", "another"}, r"a set, without an order; .*list\(\.\.\.\)"),
        (7, "the number 7; expected a string"),
        (torch.tensor(7), "the number 7; expected a string"),
        (object(), "of type object; expected a string"),
        (["fine", None], r"item 2 of the texts is None; .*leave it out"),
        (pd.Series(["fine", pd.NA], dtype="string"), r"item 2 of the texts is .*leave it out"),
        ([float("nan"), "fine"], r"item 1 of the texts is the number nan; .*leave it out"),
        (["fine", b"words"], r"item 2 of the texts is of type bytes; .*\.decode"),
        (["fine", ["nested"]], r"item 2 of the texts is of type list; .*in one list"),
        ([0.5, 1.0], r"item 1 of the texts is the number 0\.5; .*whole numbers"),
        (np.array([["a", "b"]]), "item 1 of the texts is of type list"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_named(given, message):
    for take in (Corpus.from_sources, texts_of):
        with pytest.raises(AttnscopeError, match=message):
            take(given)


def test_an_open_file_is_rejected(tmp_path):
    (tmp_path / "a.txt").write_text("words")
    with (tmp_path / "a.txt").open() as file, pytest.raises(AttnscopeError, match=r"open file; .*pathlib\.Path"):
        texts_of(file)


@pytest.mark.parametrize(
    "form",
    [
        lambda encoded: encoded,
        dict,
        lambda encoded: encoded.convert_to_tensors("pt"),
        lambda encoded: encoded.convert_to_tensors("np"),
        rows_of,
        lambda encoded: [torch.tensor(row) for row in rows_of(encoded)],
        lambda encoded: map(np.array, rows_of(encoded)),
        lambda encoded: pd.Series(rows_of(encoded)),
    ],
)  # fmt: skip
def test_token_ids_in_any_form_are_their_rows(tokenizer, form):
    for side in ("left", "right"):
        texts = texts_of(form(tokenizer(TEXTS, padding=True, padding_side=side)))
        assert [list(row) for row in texts.rows] == tokenizer(TEXTS)["input_ids"]


def test_token_ids_are_measured_as_their_text_is(tokenizer, measured):
    found = attnscope.scan(texts=tokenizer(TEXTS, padding=True), device="cpu")
    for name in measured.data_vars:
        np.testing.assert_array_equal(found[name], measured[name], err_msg=str(name))
    assert found["source"].to_numpy().tolist() == ["text 1", "text 2"]
    assert found.attrs["signature"] != measured.attrs["signature"]


@pytest.mark.parametrize("one", [[1, 9, 2], torch.tensor([1, 9, 2]), np.array([1, 9, 2], dtype=np.uint8), (1, 9, 2)])
def test_a_single_row_is_a_text(one):
    assert EncodedTexts(one).rows == [(1, 9, 2)]
    assert isinstance(texts_of(one), EncodedTexts)


def test_windows_of_text_and_of_its_ids_show_the_same_tokens():
    """A mark of the tokenizer's own, such as a chat's, is special in neither."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    text = "One.</s><|turn|> Two <mask> 猫."
    [window] = windows_of(texts_of([text]), tokenizer, length=64)
    [same] = windows_of(texts_of(tokenizer(text)), tokenizer, length=64)
    assert (window.tokens, window.special) == (same.tokens, same.special)
    marked = [token for token, special in zip(same.tokens, same.special, strict=True) if special]
    assert marked == ["<s>", "</s>", "</s>"]
    assert (same.source, same.start) == ("text 1", 0)


def test_limit_takes_the_first_rows(tokenizer):
    texts = texts_of([[1, 9, 2], [1, 8, 7, 2]])
    assert [window.ids for window in windows_of(texts, tokenizer, length=8, limit=1)] == [(1, 9, 2)]
    assert texts.characters() == 7


def test_the_hash_of_token_ids_sees_values_order_and_bounds():
    groups = [[[1, 2, 3]], [[1, 2], [3]], [[3, 2, 1]], [[1, 2, 4]], [[1, 2, 3], [1, 2, 3]]]
    assert len({EncodedTexts(rows).sha256() for rows in groups}) == len(groups)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1, 0.5]], r"text 1 has 0\.5; expected token ids \(whole numbers from 0"),
        ([[1], [True]], "text 2 has True"),
        ([[1], [2, -100]], "text 2 has -100"),
        ([[1], []], "text 2 has no token: leave it out"),
        ([[1], "words"], "text 2 is of type str; expected token ids"),
        (torch.zeros(2, 3, 4, dtype=torch.long), r"text 1 has \[0, 0, 0, 0\]; .*in one row"),
        (torch.zeros(0, 3, dtype=torch.long), "found no text"),
        ({"input_ids": []}, "found no token ids"),
        ({"input_ids": "words"}, "the token ids are of type str"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "attention_mask of text 1 does not fit"),
        ({"input_ids": [[1], [2]], "attention_mask": [[1]] * 3}, "2 texts and 3 rows of attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": [[[0, -0.5], [0, 0]]]}, "attention_mask of text 1 does not fit"),
        ({"input_ids": [[1, 2, 3]], "seq_idx": [[0, 1, 0]]}, "one document in two places"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, "hides tokens between others"),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 0]]}, "hides tokens between others, or all"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0, 1]]}, "'token_type_ids' with the token ids"),
    ],
)
def test_what_is_no_token_id_is_named(given, message):
    with pytest.raises(AttnscopeError, match=message):
        texts_of(given)


def test_what_a_tokenizer_gives_besides_does_not_matter(tokenizer):
    encoded = tokenizer(TEXTS, return_special_tokens_mask=True, return_offsets_mapping=True, return_length=True)
    given = {**encoded, "token_type_ids": [[0] * len(row) for row in encoded["input_ids"]]}
    assert [list(row) for row in texts_of(given).rows] == encoded["input_ids"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([[1, 2], [5] * 9], {}, r"text 2 has 9 tokens, but a window takes 8: cut it, .*--window"),
        ([[1, 5000, 2]], {}, r"text 1 has token id 5000, but the tokenizer has \d+ tokens"),
        ([[1, 2]], {"stride": 3}, "stride needs running text"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_named(tokenizer, rows, options, message):
    with pytest.raises(AttnscopeError, match=message):
        windows_of(texts_of(rows), tokenizer, length=8, **options)


@pytest.mark.parametrize("form", [list, lambda rows: {"sequences": torch.tensor(rows), "scores": None}])
def test_padding_of_what_was_generated_is_left_out(tokenizer, form):
    texts = texts_of(form([[0, 1, 9, 2], [1, 2, 0, 0]]))
    assert [window.ids for window in windows_of(texts, tokenizer, length=8)] == [(1, 9, 2), (1, 2)]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.eos_token  # which ends a text, too, and stays once
    texts = texts_of(form([[2, 1, 9, 2], [1, 2, 2, 2]]))
    assert [window.ids for window in windows_of(texts, tokenizer, length=8)] == [(2, 1, 9, 2), (1, 2)]


def test_targets_and_fields_are_of_texts_alone():
    with pytest.raises(AttnscopeError, match="token ids with a target"):
        texts_and_targets([[1, 2]], ["words"])
    with pytest.raises(AttnscopeError, match="token ids with a target"):
        texts_and_targets(["words"], [[1, 2]])
    with pytest.raises(AttnscopeError, match="without fields"):
        texts_of([[1, 2]], field="body")


def test_explain_takes_token_ids_where_it_takes_text(tokenizer):
    loaded = load_model(MODEL, device="cpu")
    windows = equal_windows(texts_of(None), loaded, 32, 4)
    again = equal_windows(texts_of([list(window.ids) for window in windows]), loaded, 32, 4)
    assert [window.ids for window in again] == [window.ids for window in windows]
    found = study(loaded, torch.tensor([window.ids for window in windows]), window=32)
    assert [tuple(window.ids) for window in found.windows] == [window.ids for window in windows]
