"""`attnscope translate` as users type it."""

import json
import math

import pytest
import torch
from transformers import BartForConditionalGeneration

from tests.cli.command import attnscope
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer

TEXT = "a dog\n\nthe sun\n"


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    folder = tmp_path_factory.mktemp("system")
    small_model("bart").save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    return folder


def test_a_line_for_each_line(system, tmp_path):
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    plain = attnscope("translate", system, "text", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    lines = plain.stdout.split("\n")
    assert [bool(line) for line in lines] == [True, False, True, False]
    assert attnscope("translate", system, "-", cwd=tmp_path, stdin=TEXT).stdout == plain.stdout
    assert attnscope("translate", system, "-", cwd=tmp_path, stdin="notes.txt\n").returncode == 0
    written = attnscope("translate", system, "text", "--out", "made", cwd=tmp_path)
    assert written.stdout == "written: made\n"
    assert (tmp_path / "made").read_text(encoding="utf-8") == plain.stdout

    found = json.loads(attnscope("translate", system, "text", "--json", cwd=tmp_path).stdout)
    rows = found["tables"]["translations"]
    assert [row["source"] for row in rows] == ["a dog", "", "the sun"]
    assert [row["translation"] for row in rows] == lines[:3]
    assert found["finding"]["text"] == "3 sentences translated."

    several = attnscope("translate", system, "text", "--n-best", "2", cwd=tmp_path).stdout.splitlines()
    number, texts, scores = zip(*(row.split(" ||| ") for row in several), strict=True)
    assert number == ("0", "0", "1", "2", "2")
    assert (texts[0], texts[3]) == (lines[0], lines[2])
    assert float(scores[0]) >= float(scores[1])
    assert [math.isnan(float(score)) for score in scores] == [False, False, True, False, False]


def test_a_generated_line_end_makes_no_line(system, tmp_path, monkeypatch):
    tokenizer = small_tokenizer()
    (row,) = tokenizer("a dog", return_tensors="pt")["input_ids"]
    ends = torch.tensor(tokenizer.convert_tokens_to_ids(["<0x0A>", "<0x0D>", "<0x0A>"]))
    made = torch.cat([torch.tensor([1]), row[:-1], ends, row])
    monkeypatch.setattr(BartForConditionalGeneration, "generate", lambda _, ids, **__: made.expand(len(ids), -1))
    found = attnscope("translate", system, "-", "--beams", "1", cwd=tmp_path, stdin=TEXT)
    assert found.stdout == "a dog a dog\n\na dog a dog\n"


def test_bad_input(system, refused):
    refused("translate", "bundled", "-", says="EncoderForMaskedLM is not an encoder-decoder", stdin="a\n")
    refused("translate", system, "missing", says="missing")
    refused("translate", system, "--n-best", "3", "--beams", "2", says="found n_best 3 with 2 beams", stdin="a\n")
    refused("translate", system, "--out", "none/made", says="cannot write none/made", stdin="a\n")
