"""Roles of a caller's own: scores of the planted heads, controls, and the errors of their functions."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.detection.report import role_rows
from attnscope.report import registry
from attnscope.results.reports import report_of
from attnscope_zoo.catalogue import build
from tests.tiny_models import tiny

IDS = torch.randint(5, 50, (7, 24), generator=torch.Generator().manual_seed(0)).tolist()


def before(tokens):
    """Weight on the token before."""
    return np.eye(len(tokens), k=-1)


def after_the_same(tokens):
    """Weight on the token after the last earlier occurrence of the same one."""
    expected = np.zeros((len(tokens), len(tokens)))
    for query, token in enumerate(tokens):
        earlier = [key for key in range(query) if tokens[key] == token]
        if earlier:
            expected[query, earlier[-1] + 1] = 1
    return expected


@pytest.fixture(scope="module")
def planted():
    return build("induction-decoder-2")


@pytest.fixture(scope="module")
def scored(planted):
    texts = planted.ids.tolist()
    attnscope.role(threshold=0.5, texts=texts[:10])(after_the_same)
    attnscope.role(threshold=0.5)(before)
    only = ["previous_token", "induction", "before", "after_the_same"]
    return attnscope.roles(planted.model, texts, tokenizer=planted.tokenizer, only=only)


def test_a_planted_head_has_the_role_and_no_other_and_no_control(scored):
    rows = {row["role"]: row for row in role_rows(scored)}
    for name, head in (("before", (0, 3)), ("after_the_same", (1, 1))):
        row = rows[name]
        assert (row["layer"], row["head"]) == head
        assert (row["reached"], row["initialised"], row["shuffled"], row["above"]) == (1, 0, 0, 1)
        assert row["best"] > 0.99
        assert row["low"] - 1e-9 <= row["best"] <= row["high"] + 1e-9
        assert row["definition"] == (before if name == "before" else after_the_same).__doc__
    assert rows["before"]["windows"] == 32
    assert rows["after_the_same"]["windows"] == 10


def test_it_equals_a_published_role_where_both_expect_the_same(scored, planted):
    tokens = planted.ids.shape[1]
    ours, theirs = (scored.score.sel(role=name) for name in ("previous_token", "before"))
    np.testing.assert_allclose(ours * tokens / (tokens - 1), theirs, atol=1e-6)  # the first token has none before
    uniform = scored.equal.sel(role="before")
    np.testing.assert_allclose(uniform, np.mean(1 / np.arange(2, tokens + 1)), atol=1e-6)


def test_tables_and_the_finding_have_it(scored):
    report = report_of("roles", scored)
    assert "10 texts of after the same" in report.read
    assert "after the same 1" in report.finding.sentences[0]
    assert report.finding.heads["after the same"] == [(1, 1)]


def test_by_default_roles_are_the_published_ones_and_default_stands_for_them():
    attnscope.role(threshold=0.5)(before)
    model = tiny("bert")
    alone = attnscope.roles(model, IDS, controls="none", only="before")
    assert report_of("roles", alone).read == "7 windows of 24 tokens"
    usual = attnscope.roles(model, IDS, controls="none")
    with_own = attnscope.roles(model, IDS, controls="none", only="default,before")
    assert "before" not in usual.role
    assert with_own.role.values.tolist() == [*usual.role.values, "before"]
    assert usual.equals(with_own.drop_sel(role="before")[[*usual.data_vars]].drop_vars([]))


def test_a_role_of_later_tokens_is_skipped_where_no_layer_sees_them(planted):
    attnscope.role(threshold=0.5)(before)
    attnscope.role(threshold=0.5, name="after")(lambda tokens: np.eye(len(tokens), k=1))
    how = {"tokenizer": planted.tokenizer, "controls": "none", "limit": 2}
    scored = attnscope.roles(planted.model, planted.ids.tolist(), only="before,after", **how)
    assert scored.role.values.tolist() == ["before"]
    assert "Skipped: after (no layer sees later tokens)." in report_of("roles", scored).notes
    assert attnscope.roles(tiny("bert"), IDS, controls="none", only="after").role.values.tolist() == ["after"]


@pytest.mark.parametrize(("layers", "kinds"), [(["self"], {"self"}), (["cross", "causal"], {"cross", "causal"})])
def test_only_layers_of_its_kinds_have_it(layers, kinds):
    attnscope.role(threshold=0.5, layers=layers)(before)
    scores = attnscope.roles(tiny("bart"), IDS, controls="none", only="before").score.sel(role="before")
    assert set(scores.layer_kind.values[scores.notnull().all("head").values]) == kinds


def test_weights_are_summed_over_all_that_is_expected(monkeypatch):
    """As of the matrix, also in blocks of a few queries, next to uniform attention."""
    monkeypatch.setattr("attnscope.measure.rows._WEIGHTS_AT_ONCE", 1000)
    counts = torch.rand(24, 24, generator=torch.Generator().manual_seed(1)) * (torch.arange(24) > 9)[:, None]
    attnscope.role(threshold=0.5, name="drawn")(lambda tokens: counts)
    model = tiny("gpt2")
    found = attnscope.roles(model, IDS[:1], controls="none", only="drawn").sel(role="drawn")
    weights = torch.from_numpy(attnscope.weights(model, IDS[0]).values)
    expected = (weights * counts).sum(-1)[..., 10:].mean(-1)
    np.testing.assert_allclose(found.score.values, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda tokens: np.eye(3), r"the role bad returns shape \(3, 3\) for 24 tokens; expected \(query, key\), \(24"),
        (lambda tokens: np.eye(len(tokens)) * 2, "the role bad returns NaN or numbers that are not between 0 and 1"),
        (lambda tokens: np.eye(len(tokens)) * np.nan, "returns NaN or numbers that are not between 0 and 1"),
        (lambda tokens: torch.rand(len(tokens), len(tokens)), "returns other numbers for the same text: remove random"),
        (lambda tokens: tokens.absent, "the role bad failed on 24 tokens: .* Correct its function"),
        (lambda tokens: np.zeros((len(tokens),) * 2), "the role bad expects no key in any of 7 texts"),
    ],
)
def test_a_bad_function_is_an_error_and_leaves_no_folder(function, says, tmp_path):
    attnscope.role(threshold=0.5, name="bad")(function)
    with pytest.raises(AttnscopeError, match=says) as error:
        attnscope.roles(tiny("bert"), IDS, only="bad", out=tmp_path / "run")
    assert len(str(error.value).splitlines()) <= 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"name": "induction"}, "the role 'induction' is one of attnscope: choose another name"),
        ({"name": "In"}, "needs a name of small letters, digits and _"),
        ({"layers": ["decoder"]}, "layers has 'decoder'; expected self, causal, cross"),
    ],
)
def test_a_name_or_a_kind_of_layers_that_cannot_be_is_an_error(how, says):
    with pytest.raises(AttnscopeError, match=says):
        attnscope.role(threshold=0.5, **how)(before)


def test_texts_longer_than_a_window_are_an_error():
    attnscope.role(threshold=0.5, name="long", texts=["The tide comes in twice a day. " * 8])(before)
    with pytest.raises(AttnscopeError, match=r"the role long has 1 text, which are \d+ windows of at most 16 tokens"):
        attnscope.roles(only="long", window=16, limit=2)


def test_another_function_threshold_or_text_is_another_run(tmp_path):
    model, run = tiny("bert"), {"only": "mine", "controls": "none", "out": tmp_path / "run"}

    def at(offset):
        return lambda tokens: np.eye(len(tokens), k=offset)

    attnscope.role(threshold=0.5, name="mine")(at(-1))
    first = attnscope.roles(model, IDS, **run)
    for function, how in ((at(-2), {}), (at(-1), {"threshold": 0.6}), (at(-1), {"texts": IDS[:3]})):
        attnscope.role(**{"threshold": 0.5, "name": "mine"} | how)(function)
        with pytest.raises(AttnscopeError, match=r"holds another run: its settings\.code\.role mine\.sha256 is"):
            attnscope.roles(model, IDS, **run)
    attnscope.role(threshold=0.5, name="mine")(at(-1))
    assert attnscope.roles(model, IDS, **run).identical(first)
    assert json.loads(first.attrs["signature"])["settings"]["code"]["role mine"]["module"] == __name__
    assert attnscope.open_run(tmp_path / "run").identical(first)
    registry.forget([("role", "mine")])
    assert report_of("roles", attnscope.open_run(tmp_path / "run")).finding == report_of("roles", first).finding
