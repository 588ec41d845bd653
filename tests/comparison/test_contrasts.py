"""Texts held apart: nothing is found where labels are drawn, what is planted is, and documents count, not windows."""

import json

import numpy as np
import pytest
import xarray as xr
from scipy.stats import ttest_ind

import attnscope
from attnscope import AttnscopeError, contrasts
from attnscope.comparison.contrasts import describe_contrasts
from attnscope.report.schema import text_of
from attnscope.results.scan_report import contrasts_table
from tests.cli.command import attnscope as typed


def scan_of(values, labels, documents, lengths=None):
    coordinates = {"by": ("window", np.array(labels, dtype=object)), "source": ("window", documents)}
    dims = ("window", "layer", "head")
    lengths = np.full(len(labels), 50) if lengths is None else lengths
    return xr.Dataset({"entropy": (dims, values), "length": ("window", lengths)}, coordinates)


def test_intervals_are_welchs_where_each_text_is_a_document():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 2, 3))
    labels = ["a"] * 12 + ["b"] * 8 + ["c"] * 10
    found = contrasts(scan_of(values, labels, np.arange(30)))
    for value in "abc":
        chosen = np.array(labels) == value
        expected = ttest_ind(values[chosen], values[~chosen], equal_var=False)
        got = found.sel(statistic="entropy", by=value)
        interval = expected.confidence_interval()
        np.testing.assert_allclose(got.low.values, interval.low, rtol=1e-9)
        np.testing.assert_allclose(got.high.values, interval.high, rtol=1e-9)


def test_the_test_permutes_documents_and_corrects_for_all_heads():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20, 1, 3))
    values[:7] += [0.6, 0.9, 0.0]

    found = contrasts(scan_of(values, ["a"] * 7 + ["b"] * 13, np.arange(20))).sel(statistic="entropy", by="a")
    t = np.abs(ttest_ind(values[:7], values[7:], equal_var=False).statistic)[0]
    orders = rng.permuted(np.tile(np.arange(20), (2000, 1)), axis=1)
    drawn = ttest_ind(values[orders[:, :7]], values[orders[:, 7:]], axis=1, equal_var=False).statistic
    null = np.abs(drawn).max((1, 2))
    expected = [(null >= own).mean() for own in t]
    np.testing.assert_allclose(found.p.values[0], expected, atol=0.04)
    assert found.differs.values[0].tolist() == [one <= 0.05 for one in found.p.values[0]]


@pytest.mark.parametrize("within", [False, True])
def test_skewed_texts_of_unlike_groups_differ_as_rarely_as_said(within):
    """By Welch's test, 0.95 of these, if the windows of each document are of both values."""
    rng, found = np.random.default_rng(4), 0
    for _ in range(40):
        documents = np.repeat(np.arange(12), 8) if within else np.arange(36)
        values = rng.exponential(size=(36, 1, 12))[documents] + 0.5 * rng.exponential(size=(len(documents), 1, 12))
        labels = np.where(rng.random(96) < 0.3, "a", "b") if within else np.repeat(["a", "b"], [6, 30])
        found += bool(contrasts(scan_of(values, labels.tolist(), documents)).differs.any())
    assert found <= 6


def test_a_difference_within_documents_is_found():
    rng = np.random.default_rng(5)
    documents, labels = np.repeat(np.arange(12), 8), np.tile(["a", "b", "b", "b"], 24)
    values = 3 * rng.normal(size=(12, 1, 4))[documents] + 0.3 * rng.normal(size=(96, 1, 4))
    values[labels == "a", 0, 1] += 0.4
    found = contrasts(scan_of(values, labels.tolist(), documents)).sel(statistic="entropy", by="a")
    assert found.differs.values[0].tolist() == [False, True, False, False]
    assert found.low.values[0, 1] < 0.4 < found.high.values[0, 1]
    assert found.high.values[0, 1] - found.low.values[0, 1] < 0.5


def test_drawn_labels_differ_as_rarely_as_said():
    """Windows of one document are alike: by windows, nearly every trial would find something."""
    rng = np.random.default_rng(1)
    found = by_window = 0
    for _ in range(60):
        documents = np.repeat(np.arange(24), 6)
        values = rng.normal(size=(24, 2, 8))[documents] + 0.2 * rng.normal(size=(144, 2, 8))
        labels = rng.permutation(["en"] * 12 + ["ja"] * 12)[documents]
        found += bool(contrasts(scan_of(values, labels, documents)).differs.any())
        by_window += bool(contrasts(scan_of(values, labels, np.arange(144))).differs.any())
    assert found <= 7  # 5% are expected; more than 7 of 60 has a chance of 1%
    assert by_window > 54


def test_a_planted_difference_is_found_and_no_other():
    rng = np.random.default_rng(2)
    values = rng.normal(2.0, 0.1, (60, 2, 4))
    labels = ["en", "ja", "de"] * 20
    values[1::3, 1, 2] += 0.3
    found = contrasts(scan_of(values, labels, np.arange(60)))
    assert found.differs.sel(by="ja").values[0, 1, 2]
    assert found.tested.sel(by="ja").all()
    assert found.difference.sel(by="ja").values[0, 1, 2] == pytest.approx(0.3, abs=0.1)
    assert not np.delete(found.differs.sel(by="ja").values.ravel(), 6).any()


def test_what_has_the_same_numbers_counts_once():
    values = np.random.default_rng(3).normal(size=(30, 2, 3))
    once = scan_of(values, ["a"] * 15 + ["b"] * 15, np.arange(30))
    twice = once.assign(sharpness=once.entropy)
    found = contrasts(twice)
    np.testing.assert_array_equal(found.p.values, contrasts(once).p.values)
    assert found.statistic.values.tolist() == ["entropy"]
    assert "sharpness has the same numbers as entropy here and is counted once, as entropy." in describe_contrasts(
        found
    )


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.jsonl"
    short, long = "The tide is out.", "The tide comes in twice a day, and twice a day it goes out again."
    lines = [{"text": f"{long} {number}", "kind": "long"} for number in range(8)]
    lines += [{"text": f"{short} {number}", "kind": "[red]short"} for number in range(8)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-7])
def test_no_difference_is_cut_in_80_columns(scale):
    values = 2.0 + scale * np.random.default_rng(0).normal(0, 0.1, (40, 1, 2))
    values[:20] += scale
    found = scan_of(values, ["a document of harbours"] * 20 + ["b"] * 20, np.arange(40))
    table, _ = contrasts_table(found)
    rows = [row for row in table.rows if row["differs"]]
    assert len(rows) == min(table.terminal, len(rows)) > 0
    (difference,) = (one for one in table.quantities if one.name == "difference")
    for row in rows:
        assert float(text_of(difference, row)[0].replace("−", "-")) == pytest.approx(row["difference"], rel=0.06)


def test_the_command_holds_texts_apart(corpus, tmp_path):
    out = tmp_path / "run"
    words = ("scan", "bundled", corpus, "--by", "kind", "--out", out, "--no-report", "--device", "cpu")
    said = " ".join(typed(*words, cwd=tmp_path).stdout.split())
    assert "kind: [red]short (8 windows of 8 documents), long (8 windows of 8 documents)." in said
    assert "Mean window lengths differ" in said
    results = attnscope.open_run(out)
    assert results.by.values.tolist() == ["long"] * 8 + ["[red]short"] * 8
    found = contrasts(results)
    assert found.differs.any()
    some = results.entropy[:8, 1, 2].mean().item()
    assert found["mean"].sel(statistic="entropy", by="long")[1, 2].item() == pytest.approx(some)
    typed(*(word for word in words if word != "--no-report"), cwd=tmp_path)
    page = (out / "report.html").read_text()
    assert "differences by kind" in page
    assert "<bdi>[red]short</bdi></td>" in page or "<bdi>long</bdi></td>" in page
    again = json.loads(typed(*words, "--json", cwd=tmp_path).stdout)
    assert again["tables"]["by"][0]["differs"]


def test_groups_that_cannot_be_formed_are_rejected(corpus, tmp_path):
    with pytest.raises(AttnscopeError, match="no value"):
        attnscope.scan("bundled", corpus, by="language")
    with pytest.raises(AttnscopeError, match="is a string"):
        attnscope.scan("bundled", ["a text"], by="kind")
    with pytest.raises(AttnscopeError, match="no groups of texts"):
        contrasts(attnscope.scan(texts=["a text"]))
    other = tmp_path / "other.txt"
    other.write_text("text")
    with pytest.raises(AttnscopeError, match="JSON Lines"):
        attnscope.scan("bundled", [corpus, other], by="kind")


def test_few_documents_of_several_values_each_are_not_tested():
    labels, values = np.tile(["en", "ja"], 5), np.random.default_rng(0).normal(size=(10, 1, 2))
    data = xr.Dataset(
        {"entropy": (("window", "layer", "head"), values)},
        {"by": ("window", labels), "source": ("window", np.arange(10) // 2)},
    )
    found = attnscope.contrasts(data)
    assert not found.tested.any()
    assert bool(found.difference.notnull().all())
