"""Readers of a caller's own: rows with groups, words and positions in place of a file."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.read.readers import with_rows
from tests.tiny_models import tiny

IDS = torch.randint(5, 50, (3, 12), generator=torch.Generator().manual_seed(0)).tolist()
GROUPS = [["a" if token % 2 else "b" for token in row] for row in IDS]
WORDS = [0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7]
POSITIONS = [[token + 3 for token in range(12)]] * 3
ROWS = [{"input_ids": ids, "groups": groups} for ids, groups in zip(IDS, GROUPS, strict=True)]


@pytest.fixture
def read(tmp_path):
    """A function that reads rows by a reader, from a file of its ending."""

    def through(rows, name="corpus"):
        attnscope.reader("mine")(lambda path: rows if path.suffix == ".mine" else None)
        file = tmp_path / f"{name}.mine"
        file.write_text("read by the reader alone")
        return file

    return through


def test_rows_are_read_in_place_of_a_file(read):
    model = tiny("bert")
    expected = attnscope.scan(model, IDS, batch_size=2)
    found = attnscope.scan(model, read([{"input_ids": ids} for ids in IDS]), batch_size=2)
    for name in expected.data_vars:
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    assert found.source.values.tolist() == [f"corpus.mine, row {number}" for number in (1, 2, 3)]
    assert attnscope.roles(model, read([{"input_ids": ids} for ids in IDS]), controls="none").windows.min() == 3


def test_a_session_reads_a_file_once(read):
    file, reads = read([{"input_ids": ids} for ids in IDS]), []
    attnscope.reader("mine")(lambda path: reads.append(path) or [{"input_ids": ids} for ids in IDS])
    session = attnscope.Session(tiny("bert"), file, limit=2)
    np.testing.assert_array_equal(session.scan().entropy, session.scan().entropy)
    session.roles(controls="none")
    assert reads == [file]


def test_groups_are_those_of_a_function(read):
    model = tiny("gpt2")
    found = attnscope.scan(model, read(ROWS))
    assert found.group_query.values.tolist() == list(dict.fromkeys(GROUPS[0] + GROUPS[1]))
    weights = attnscope.weights(model, IDS[0]).values
    members = np.array(GROUPS[0]) == "a"
    expected = weights[..., members].sum(-1)[..., members].mean(-1)
    np.testing.assert_allclose(
        found.group_weight.sel(group_query="a", group_key="a").isel(window=0), expected, atol=1e-6
    )


def test_tokens_of_a_word_are_measured_as_one(read):
    """Queries averaged and keys summed, as with words of a text."""
    model, rows = tiny("bert"), [{"input_ids": IDS[0], "words": [number * 2 for number in WORDS]}]
    found = attnscope.scan(model, read(rows), statistics=["first_token", "entropy"])
    weights = torch.from_numpy(attnscope.weights(model, IDS[0]).values)
    merge = torch.zeros(12, 8, dtype=weights.dtype)
    merge[torch.arange(12), torch.tensor(WORDS)] = 1
    merged = (merge / merge.sum(0)).T @ weights @ merge
    np.testing.assert_allclose(found.first_token.isel(window=0), merged[..., 0].mean(-1), atol=1e-6)
    assert found.length.values.tolist() == [8]
    assert "given with the token ids" in found.attrs["words"]


def test_positions_are_those_of_the_model(read):
    model = tiny("bert")
    rows = [{"input_ids": IDS[0], "position_ids": POSITIONS[0]}]
    found, others = attnscope.scan(model, read(rows)), attnscope.scan(model, IDS[:1])
    with torch.no_grad():
        eager = tiny("bert")
        eager.set_attn_implementation("eager")
        weights = eager(torch.tensor(IDS[:1]), position_ids=torch.tensor(POSITIONS[:1]), output_attentions=True)
    first = torch.stack(weights.attentions)[:, 0, :, :, 0].mean(-1)
    np.testing.assert_allclose(found.first_token.isel(window=0), first, atol=1e-5)
    assert not np.allclose(found.first_token, others.first_token, atol=1e-3)


def test_texts_are_rows_too(read):
    texts = ["The tide comes in.", "It goes out again."]
    found, expected = attnscope.scan(texts=read(texts)), attnscope.scan(texts=texts)
    np.testing.assert_array_equal(found.entropy.values, expected.entropy.values)


def test_other_rows_are_another_run_and_the_same_ones_are_not(read, tmp_path):
    model, out = tiny("bert"), tmp_path / "run"
    first = attnscope.scan(model, read(ROWS), out=out, show=False)
    assert attnscope.scan(model, read([dict(row) for row in ROWS]), out=out, show=False).identical(first)
    other = [ROWS[0] | {"groups": GROUPS[1]}, *ROWS[1:]]
    with pytest.raises(AttnscopeError, match="holds another run: its corpus"):
        attnscope.scan(model, read(other), out=out, show=False)
    assert attnscope.open_run(out).identical(first)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], r"the reader mine found no row in .*corpus.mine; expected at least one"),
        ([3], r"the reader mine returns 3 as row 1 of .*; expected texts, or a mapping with input_ids for each"),
        ([ROWS[0], "text"], "returns 'text' as row 2 of"),
        ([{"input_ids": IDS[0], "groups": ["a"]}], "the groups of text 1 do not fit; expected a name for each token"),
        ([{"input_ids": IDS[0], "words": WORDS[::-1]}], "the words of text 1 do not fit; expected a whole number"),
        ([{"input_ids": IDS[0], "words": 3}], "the words of text 1 do not fit"),
        ([{"input_ids": IDS[0], "tags": IDS[0]}], "found 'tags' with the token ids; only"),
        (None, "the reader mine failed on .*corpus.mine"),
    ],
)
def test_bad_rows_are_an_error_and_leave_no_folder(rows, says, read, tmp_path):
    with pytest.raises(AttnscopeError, match=says) as error:
        attnscope.scan(tiny("bert"), read(rows), out=tmp_path / "run")
    assert len(str(error.value).splitlines()) <= 2
    assert not (tmp_path / "run").exists()


def test_words_and_groups_of_rows_are_for_scan_alone(read):
    with pytest.raises(AttnscopeError, match="found 'groups' with the token ids, which only scan and weights use"):
        attnscope.roles(tiny("bert"), read(ROWS))
    words = [{"input_ids": IDS[0], "words": WORDS}]
    with pytest.raises(AttnscopeError, match="the token ids have words of their own: leave out words"):
        attnscope.scan(tiny("bert"), read(words), words="space")
    with pytest.raises(AttnscopeError, match="groups and words need all rows"):
        attnscope.scan(tiny("bert"), read(words), rows=16)


def test_an_ending_of_ours_or_two_kinds_of_files_are_errors(read, tmp_path):
    with pytest.raises(AttnscopeError, match="the reader 'txt' is one of attnscope: choose another name"):
        attnscope.reader("txt")(list)
    with pytest.raises(AttnscopeError, match=r"found files of .mine, which a reader of yours reads, and others"):
        with_rows([read(ROWS), tmp_path / "other.txt"])
    with pytest.raises(AttnscopeError, match=r"absent.mine is no file; expected one with rows for the reader mine"):
        attnscope.scan(texts=tmp_path / "absent.mine")
