"""The command as a user types it: pairs from files, its table, its formats, its page, and bad input."""

import csv
import io
import json

import numpy as np
import pytest

from tests.cli.command import attnscope

LINES = [
    {"clean": f"It was {a}<mask> the game.", "corrupted": f"It was {b}<mask> the game."}
    for a, b in [("part", "due"), ("one", "back"), ("rest", "led")]
]
ANSWERS = ("--answer", " of", "--wrong", " to")
ENDS = ("the game", "the city", "the war", "the same", "the other", "a new")
WORDS = (("part", "due"), ("one", "back"), ("rest", "led"), ("side", "up"), ("top", "due"), ("end", "back"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The bundled model with its own pairs."""
    place = tmp_path_factory.mktemp("patch")
    found = attnscope("patch", "--out", "run", cwd=place)
    assert found.returncode == 0, found.stderr
    return place, found.stdout


def test_the_table_says_which_heads_carry_the_difference(tmp_path):
    """Effects of 12 pairs vary too much for a test that allows for skewed ones; 24 pairs show both heads."""
    starts = ("It was", "He was", "She was", "They were", "It had", "There was")
    chosen = [(start, WORDS[(i + k) % 6], ENDS[(i + 2 * k) % 6]) for k in range(4) for i, start in enumerate(starts)]
    lines = [
        {"clean": f"{start} {a}<mask> {end}.", "corrupted": f"{start} {b}<mask> {end}."}
        for start, (a, b), end in chosen
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = attnscope("patch", "bundled", "pairs.jsonl", *ANSWERS, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 activations patched in 24 pairs of texts" in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if "*" in line and "%" in line]
    assert {"0.0", "0.3"} == set(rows[:2])
    assert {"report.html", "patched.npz", "agreement.npz"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_csv_has_the_sets_too(tmp_path):
    done = attnscope("patch", "--together", "0.3,0.0", "--steps", "0", "--out", "run", "--csv", cwd=tmp_path)
    rows = [*csv.DictReader(io.StringIO(done.stdout))]
    sets = [row for row in rows if row["heads"]]
    assert [row["heads"] for row in sets] == ["0.3, 0.0"]
    assert not sets[0]["layer"]
    assert len(rows) == 13
    assert 0.9 < float(sets[0]["recovered"]) < 1.1
    np.testing.assert_allclose(float(sets[0]["effect"]) - float(sets[0]["alone"]), float(sets[0]["between"]), rtol=1e-4)


def test_pairs_come_from_lines_of_two_or_four_files_too(tmp_path):
    names = {"clean.txt": "clean", "corrupted.txt": "corrupted"}
    for name, field in names.items():
        (tmp_path / name).write_text("".join(f"{line[field]}\n" for line in LINES))
    (tmp_path / "answers.txt").write_text(" of\n" * 3)
    (tmp_path / "wrong.txt").write_text(" to\n" * 3)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    few = ("--steps", "0", "--csv", "--no-report")
    printed = [
        attnscope("patch", "bundled", *files, *few, cwd=tmp_path).stdout
        for files in (
            ("pairs.jsonl", *ANSWERS),
            ("clean.txt", "corrupted.txt", *ANSWERS),
            ("clean.txt", "corrupted.txt", "answers.txt", "wrong.txt"),
        )
    ]
    assert printed[0].count("\n") == 13
    assert printed[0] == printed[1] == printed[2]


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        ("", (), "contains no pairs"),
        ("no json\n", (), "line 1: not JSON"),
        ("[1]\n", (), "found a JSON array"),
        ('{"clean": "a"}\n', (), "no field 'corrupted'"),
        (json.dumps(LINES[0] | {"answer": 3}), (), "expected a string"),
        (json.dumps(LINES[0]), ("--answer", " harbours", "--wrong", " to"), "has 5 tokens ("),
        (json.dumps(LINES[0] | {"clean": "It<mask>"}), ANSWERS, "tokens and the corrupted one"),
        (json.dumps(LINES[0] | {"clean": LINES[0]["corrupted"]}), ANSWERS, "have the same tokens"),
        ("\ud800", (), "UTF-8"),
    ],
)
def test_bad_input_is_reported_in_a_line(tmp_path, refused, text, words, says):
    (tmp_path / "pairs.jsonl").write_bytes(text.encode(errors="surrogatepass"))
    refused("patch", "bundled", "pairs.jsonl", *words, says=says)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_files_that_do_not_belong_together_are_reported_in_a_line(tmp_path, refused):
    (tmp_path / "one.txt").write_text("a\n")
    (tmp_path / "two.txt").write_text("a\nb\n")
    refused("patch", "bundled", "one.txt", "two.txt", *ANSWERS, says="1 lines and two.txt 2")
    refused("patch", "bundled", "one.txt", "one.txt", "one.txt", says="found 3 files")
