"""`attnscope score` prints what the function gives."""

import json

import pytest

import attnscope_lineage
from tests.cli.command import attnscope as command

HYPOTHESES = ["the cat sat on the mat today", "a dog"] * 10
REFERENCES = ["the cat sat on the mat", "a dog barks"] * 10


@pytest.fixture
def files(tmp_path):
    (tmp_path / "one.txt").write_text("\n".join(HYPOTHESES) + "\n")
    (tmp_path / "two.txt").write_text("\n".join(REFERENCES) + "\n")
    (tmp_path / "reference.txt").write_text("\n".join(REFERENCES) + "\n")
    return tmp_path


def run(folder, *arguments, stdin=""):
    found = command("score", *arguments, cwd=folder, stdin=stdin)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_json_is_the_result(files):
    out = run(
        files, "one.txt", "two.txt", "--target", "reference.txt", "--text", "one.txt", "--by-length", "3,9", "--json"
    )
    found = json.loads(out)
    expected = attnscope_lineage.score({"one.txt": HYPOTHESES, "two.txt": REFERENCES}, [REFERENCES])
    assert found["signature"] == json.loads(expected.attrs["signature"])
    systems, lengths = found["tables"]["systems"], found["tables"]["lengths"]
    for row in systems:
        at = expected.sel(system=row["system"], metric="BLEU")
        assert row["bleu"] == float(at["score"].item())
        assert row["bleu_upper"] == float(at["upper"].item())
    assert systems[0]["bleu_p_value"] is None
    assert systems[1]["bleu_difference"] > 0
    second = {row["length"]: row for row in lengths if row["system"] == "two.txt"}
    assert {length: row["sentences"] for length, row in second.items()} == {"1-3": 10, "4-9": 10, "10+": 0}
    assert second["10+"]["chrf"] is None
    assert second["1-3"]["chrf"] > 0
    assert second["1-3"]["chrf_lower"] is second["1-3"]["chrf_upper"] is None


def test_the_table_has_systems_intervals_buckets_and_signatures(files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    out = run(files, "one.txt", "two.txt", "--target", "reference.txt", "--text", "one.txt", "--by-length", "3")
    for word in ("20 sentences", "one.txt", "two.txt", "100.0 to 100.0", "By source length"):
        assert word in out
    assert "BLEU|nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:" in out


@pytest.mark.parametrize("sentences", [5, 19])
def test_of_few_sentences_there_is_no_interval_and_of_fewer_no_test(sentences, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    for name, lines in (("one", HYPOTHESES), ("two", REFERENCES)):
        (tmp_path / name).write_text("\n".join(lines[:sentences]) + "\n")
    asked = [tmp_path / "one", tmp_path / "two", "--target", tmp_path / "two"]
    out = run(tmp_path, *asked)
    assert "Intervals of scores need 20 or more sentences." in out
    assert ("Tests need 6 or more sentences." in out) == (sentences < 6)
    assert [word in out for word in ("95% interval", " p ", "bs:")] == [sentences >= 6] * 3
    (_, system) = json.loads(run(tmp_path, *asked, "--json"))["tables"]["systems"]
    assert system["bleu_difference"] > 0
    assert system["bleu_lower"] is None
    assert (system["bleu_p_value"] is None) == (sentences < 6)


def test_mistakes_are_reported(files, refused):
    one, reference = files / "one.txt", files / "reference.txt"
    refused("score", one, "--target", files / "absent", says="no such file or folder")
    refused("score", one, "--target", reference, "--by-length", "a", says="expected whole numbers")
    refused("score", "-", "--target", "-", says="only one of the files")
    refused("score", one, "--target", reference, "--text", one, says="give --by-length too")
    refused("score", one, one, "--target", reference, says="listed twice")
