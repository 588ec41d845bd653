"""`roles` on models whose heads are known, on a model that knows nothing, and on what cannot be asked."""

import html
import json

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.detection.probes import needles_of
from attnscope.detection.report import role_rows
from attnscope.detection.role import ROLES
from attnscope.report.render import as_json
from attnscope.report.signature import Signature
from attnscope.results.reports import report_of, write_page
from attnscope.store.runs import skipped_of
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope as command


def of_animal(name, **asked):
    animal = build(name)
    texts = [" ".join(f"t{token}" for token in row) for row in animal.ids[:8].tolist()]
    return animal, attnscope.roles(animal.model, texts, tokenizer=animal.tokenizer, window=animal.ids.shape[1], **asked)


def planted(animal, words):
    return next(
        (layer, head) for layer, call in enumerate(animal.roles) for head, role in enumerate(call) if words in role
    )


@pytest.mark.parametrize(
    ("name", "words", "role"),
    [
        ("previous-decoder-2", "attends to offset -1 and predicts", "previous_token"),
        ("next-encoder-1", "attends to offset 1 and predicts", "next_token"),
        ("duplicate-decoder-1", "duplicate-token head", "duplicate_token"),
        ("induction-decoder-1", "previous-token head", "previous_token"),
        ("induction-decoder-2", "induction head", "induction"),
        ("sinks-encoder-1", "sink", "first_token"),
    ],
)
def test_a_planted_head_has_the_highest_score_of_its_role(name, words, role):
    animal, result = of_animal(name, only=role, controls="none")
    score = result["score"].sel(role=role).values
    place = planted(animal, words)
    assert score[place] > 0.8
    rivals = [
        score[layer, head]
        for layer, call in enumerate(animal.roles)
        for head, said in enumerate(call)
        if words not in said
    ]
    assert score[place] > max(rivals) + 0.2


def test_untrained_weights_score_as_uniform_attention_and_the_model_stays_as_it_is():
    before = build("previous-decoder-2").model.state_dict()
    only = "previous_token, sink, induction"
    animal, result = of_animal("previous-decoder-2", only=only)
    assert all(torch.equal(values, before[name]) for name, values in animal.model.state_dict().items())
    drawn = result["control_score"].sel(control="initialised", role="previous_token")
    equal = result["equal"].sel(role="previous_token")
    assert float(np.abs(drawn - equal).max()) < 0.05
    row = role_rows(result)[0]
    assert (row["reached"], row["heads"], row["initialised"], row["shuffled"]) == (1, 8, 0, 0)
    assert "previous token 1" in report_of("roles", result).finding.sentences[0]
    assert result.identical(of_animal("previous-decoder-2", only=only)[1])


def test_what_makes_no_sense_for_a_model_is_left_out_with_the_reason():
    skipped = skipped_of(attnscope.roles(limit=2, controls="none"))
    assert "no layer is causal" in skipped["induction"]
    assert set(skipped) == {"streaming", "induction", "retrieval"}
    _, result = of_animal("previous-decoder-1", controls="none")
    assert "no layer sees later tokens" in skipped_of(result)["next_token"]
    assert "has no space for a needle" in skipped_of(result)["retrieval"]
    with pytest.raises(AttnscopeError, match="none of these roles can be scored"):
        attnscope.roles(only="induction")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("roles")
    options = ("--only", "previous_token,next_token", "--limit", 2, "--controls", "shuffled", "--out", "run")
    said = command("roles", *options, "--window", 32, cwd=place)
    assert said.returncode == 0, said.stderr
    return place, (*options, "--window", 32), said.stdout


def test_the_command_prints_a_table_and_leaves_a_run_that_opens_again(run):
    place, options, said = run
    assert "previous token" in said
    assert "previous token 1, next token 1" in said
    page = (place / "run" / "report.html").read_text(encoding="utf-8")
    assert 'id="role-maps"' in page
    assert "Clark et al. 2019" in page
    result = attnscope.open_run(place / "run")
    assert result["score"].sel(role="next_token").argmax(...)["head"] == 1
    given = json.loads(command("roles", *options, "--json", cwd=place).stdout)
    assert [row["role"] for row in given["tables"]["roles"]] == ["previous_token", "next_token"]
    rows = command("roles", *options, "--csv", cwd=place).stdout.splitlines()
    signature = Signature.from_json(result.attrs["signature"]).short
    assert [row.rpartition(",")[2] for row in rows] == ["signature", *[signature] * 2 * 12]
    assert "previous token 1" in command("runs", "show", "run", cwd=place).stdout.replace("\n", " ")
    assert "roles" in command("runs", "list", cwd=place).stdout


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((2, 60), "1 of 3 windows left out: fewer than the 32 tokens of a full one"),
        ((4, 0, 0), "2 of 3 windows left out: fewer than 8 tokens, too few"),
        ((90,), ""),
    ],
)
def test_windows_that_were_left_out_are_counted(lines, told, tmp_path):
    """What is left out depends on the corpus: the first has two full windows, the second none."""
    (tmp_path / "a.txt").write_text("".join(f"The tide{' is out' * words}.\n" for words in lines))
    words = ("roles", "bundled", "a.txt", "--by-line", "--only", "previous_token", "--window", "32")
    words = (*words, "--limit", "3", "--controls", "none", "--out", "run", "--figures", "none")
    said = " ".join(command(*words, cwd=tmp_path).stdout.split())
    notes = json.loads(command(*words, "--json", cwd=tmp_path).stdout)["notes"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    shown = " ".join(command("runs", "show", "run", cwd=tmp_path).stdout.split())
    for place in (" ".join(notes), said, page, shown):
        assert (told in place) if told else ("left out" not in place)


def test_all_roles_are_listed_with_their_sources(tmp_path):
    said = command("roles", "--only", "list", cwd=tmp_path).stdout
    assert all(f"{name}: " in said for name in ROLES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only", "mover"), "there is no role 'mover': choose from previous_token"),
        (("--controls", "permuted"), "there is no control 'permuted'"),
        (("--needles", "absent.jsonl"), "absent.jsonl"),
        (("--needles", "absent.jsonl", "--only", "next_token"), "need retrieval heads: add retrieval"),
        (("--limit", "0"), "limit"),
    ],
)
def test_bad_input_exits_with_one_line(options, says, tmp_path):
    said = command("roles", *options, cwd=tmp_path)
    assert (said.returncode, says in said.stderr) == (2, True), said.stderr
    assert not list(tmp_path.iterdir())


def test_few_windows_give_no_interval(tmp_path):
    """They tell nothing of others; texts of random tokens are always enough."""
    found = attnscope.roles(only="previous_token, duplicate_token", limit=2, controls="none")
    looks, repeats = (found.sel(role=role) for role in ("previous_token", "duplicate_token"))
    assert looks.score.notnull().all()
    assert looks.low.isnull().all()
    assert looks.high.isnull().all()
    assert repeats.low.notnull().all()
    report = report_of("roles", found)
    told = as_json(report, tmp_path)["tables"]
    assert told["roles"][0]["low"] is told["heads"][0]["low"] is None
    assert told["heads"][0]["score"] == float(looks.score[0, 0])
    page = write_page(report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.escape(report.finding.sentences[0].rstrip(".")) in page.split("<nav")[0]
    assert "nan" not in page.split("<table")[1].split("</table>")[0]


@pytest.mark.usefixtures("no_types")
def test_bad_needles_raise():
    for given, says in (
        ([{"needle": "A pie."}], "needle 1: expected a needle and a question"),
        (["A pie."], "needle 1: expected a needle and a question"),
        ([{"needle": "A pie.", "question": "What?", "real_needle": "cake"}], "not a part of the needle"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            needles_of(given)


def test_an_induction_head_is_a_retrieval_head_where_the_needle_begins_the_question():
    animal = build("induction-decoder-2")
    hay = " ".join(f"t{token}" for token in (3, 4, 5, 6, 7, 8, 9, 10))
    result = attnscope.roles(
        animal.model,
        [f"t1 {hay}"],
        tokenizer=animal.tokenizer,
        window=animal.ids.shape[1],
        only="retrieval",
        needles=[{"needle": "t15 t12 t17 t14", "prompt": "t15"}],
    )
    score = result["score"].sel(role="retrieval")
    assert json.loads(result.attrs["notes"])["needle"] >= 3
    assert float(score[planted(animal, "induction head")]) >= 0.75  # the first of four tokens is asked
    row = role_rows(result)[0]
    assert (row["layer"], row["head"]) == planted(animal, "induction head")
    assert row["above"] >= 1


def test_the_heads_that_pass_are_named_the_best_first():
    """At the threshold; without one, above all controls and before the largest gap; else the best in parentheses."""
    score = np.array([[[0.9, 0.2], [0.95, np.nan]], [[0.4, 0.1], [0.35, 0.02]], [[0.1, 0.2], [0.05, 0.0]]])
    names = ["previous_token", "induction", "first_token"]
    cells = ("role", "layer", "head")
    roles = xr.Dataset(
        {
            **dict.fromkeys(("score", "low", "high"), (cells, score)),
            "equal": (cells[:2], np.zeros((3, 2))),
            "windows": ("role", [9] * 3),
            "threshold": ("role", [0.5, np.nan, 0.3]),
            "control_score": (("control", *cells), score[None] * 0 + 0.05),
        },
        {"role": names, "layer": [0, 1], "control": ["shuffled"]}
        | dict.fromkeys(("title", "definition", "source"), ("role", names)),
    )
    assert [row["passing"] for row in role_rows(roles)] == ["1.0 0.0", "0.0 1.0", "(0.1)"]
    many = roles.isel(role=[0]).isel(head=[0] * 7).assign_coords(head=range(7))
    assert role_rows(many)[0]["passing"] == "1.0 1.1 1.2 1.3 1.4 +9"


@pytest.mark.parametrize("name", ["first_token", "sink"])
def test_a_short_text_makes_no_sink_of_a_head_near_uniform_attention(name):
    """Uniform attention over few tokens reaches the published threshold by itself."""
    scores = np.array([[0.31, 0.45, 0.61, 0.63]])
    assert ROLES[name].reached(scores, np.array([0.31])).tolist() == [[False, False, False, True]]
    assert ROLES[name].reached(scores, np.array([0.02])).all()  # a long text
    assert not ROLES[name].reached(np.array([[0.29]]), np.array([0.02])).any()
