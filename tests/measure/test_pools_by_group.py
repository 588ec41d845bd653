"""Pools of texts that are held apart by a field, and of tokens in groups: the sums of the same scan without pools."""

import json
import random
import re
from functools import cache

import numpy as np
import pytest

import attnscope
from attnscope import contrasts, open_run
from attnscope.comparison.contrasts import describe_contrasts
from attnscope.comparison.groups import group_pairs
from attnscope.read.encoded import texts_of, windows_of
from tests.cli.command import attnscope as command
from tests.measure.test_pools import WORDS
from tests.measure.test_targets import TARGETS, TEXTS
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny

SIZE, WINDOW = 3, 24


def letters(tokens):
    """Two groups that nearly every window has, and one that many have not."""
    shown = [token.strip(" ▁") for token in tokens]
    return ["rare" if token in {"b", "g"} else "vowel" if token in set("aeiou") else "other" for token in shown]


@pytest.fixture(scope="module")
def lines():
    rng = random.Random(0)
    kinds = [rng.choice(["en", "ja", "de"]) for _ in range(14)]
    return [{"text": " ".join(rng.choices(WORDS, k=rng.choice([2, 5, 9, 25]))), "kind": kind} for kind in kinds]


@pytest.fixture(scope="module")
def corpus(lines, tmp_path_factory):
    return written(tmp_path_factory.mktemp("corpus") / "texts.jsonl", lines)


def written(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module")
def scans(corpus, tmp_path_factory):
    """By the name of a model: window by window, in pools, and the numbers of the windows of each pool."""

    @cache
    def both(name):
        given = {"tokenizer": small_tokenizer(), "groups": letters, "batch_size": 1}
        if name == "bart":
            model, texts = small_model("bart"), TEXTS
            given |= {"targets": TARGETS, "window": 40, "band": 3}
        else:
            model, texts = tiny(name), corpus
            given |= {"window": WINDOW, "by": "kind"}
        run = tmp_path_factory.mktemp(name) / "run"
        pools = attnscope.scan(model, texts, pool=SIZE, out=run, show=False, **given)
        ends = np.cumsum(pools.window_count.values)
        numbers = np.split(open_run(run, part="windows").pooled_window.values, ends[:-1])
        return attnscope.scan(model, texts, **given), pools, numbers

    return both


def sides(name, lines):
    """The groups of the tokens that queries and keys of a self-attention are, and those of a decoder, by hand."""
    tokenizer = small_tokenizer()
    if name != "bart":
        texts = texts_of([line["text"] for line in lines])
        return [(letters(window.tokens),) * 2 for window in windows_of(texts, tokenizer, length=WINDOW)]
    shown = tokenizer.convert_ids_to_tokens
    read = [tokenizer(text).input_ids for text in TEXTS]
    written = [[1, *tokenizer(text_target=target).input_ids[:-1]] for target in TARGETS]
    return [(letters(shown(source)), letters(shown(target))) for source, target in zip(read, written, strict=True)]


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_groups_of_a_pool_are_of_all_queries_of_its_windows(name, scans, lines):
    windows, pools, pooled_numbers = scans(name)
    groups = windows.group_query.values.tolist()
    counts = np.array([[[side.count(group) for group in groups] for side in window] for window in sides(name, lines)])
    assert len(counts) == windows.sizes["window"]
    assert (counts == 0).any()  # a window without some group
    assert sorted(np.concatenate(pooled_numbers)) == list(range(len(counts)))
    for pool, numbers in enumerate(pooled_numbers):
        some = windows.isel(window=numbers)
        for layer, kind in enumerate(windows.layer_kind.values):
            queries = counts[numbers, 0 if kind == "self" else 1].astype(float)
            keys = counts[numbers, 1 if kind == "causal" else 0]
            own = pools.isel(window=pool, layer=layer)
            np.testing.assert_array_equal(own.group_rows[0], queries.sum(0))
            behind = queries[:, :, None] * (keys > 0)[:, None]  # (window, query group, key group)
            np.testing.assert_array_equal(own.group_pair_rows[0], behind.sum(0))
            for statistic in ("group_weight", "position_group_weight", "equal_group_weight"):
                each = some[statistic].isel(layer=layer).values
                weights = behind if each.ndim == 3 else behind[:, None]
                np.testing.assert_array_equal(np.isnan(each).all(0), np.isnan(own[statistic].values))
                sums = np.nansum(each * weights, 0)
                found = np.nan_to_num(own[statistic].values) * behind.sum(0)
                np.testing.assert_allclose(found, sums, rtol=1e-12, atol=1e-14)
            for statistic in ("entropy", "first_token", "mean_offset", "equal_entropy"):
                each = some[f"{statistic}_by_group"].isel(layer=layer).values
                weights = queries if each.ndim == 2 else queries[:, None]
                found = np.nan_to_num(own[f"{statistic}_by_group"].values) * queries.sum(0)
                np.testing.assert_allclose(found, np.nansum(each * weights, 0), rtol=1e-12, atol=1e-12)


def test_pools_of_a_value_are_those_of_its_texts_alone(scans, lines, tmp_path):
    _, pools, _ = scans("llama")
    alone = written(tmp_path / "en.jsonl", [line for line in lines if line["kind"] == "en"])
    given = {"tokenizer": small_tokenizer(), "groups": letters, "batch_size": 1, "window": WINDOW}
    expected = attnscope.scan(tiny("llama"), alone, pool=SIZE, **given)
    found = pools.isel(window=pools.by == "en")
    for name in ("band_sum", "entropy", "entropy_variance", "group_weight", "length", "window_count", "start"):
        np.testing.assert_array_equal(found[name].values, expected[name].values)


def test_comparisons_of_pools_of_one_window_are_those_of_windows(corpus, scans):
    given = {"tokenizer": small_tokenizer(), "groups": letters, "batch_size": 1, "window": WINDOW, "by": "kind"}
    windows, pools = scans("llama")[0], attnscope.scan(tiny("llama"), corpus, pool=1, **given)
    expected, found = contrasts(windows), contrasts(pools)
    assert found.statistic.values.tolist() == expected.statistic.values.tolist()
    assert np.isfinite(expected.p).any()
    for name in ("mean", "others", "difference", "low", "high", "p", "texts", "documents", "length"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)
    assert found.windows.values.tolist() == expected.texts.values.tolist()
    pairs, own_pairs = group_pairs(windows), group_pairs(pools)
    assert len(pairs) == 9
    for own, other in zip(own_pairs, pairs, strict=True):
        assert [own[name] for name in ("query", "key", "layer", "head")] == [
            other[name] for name in ("query", "key", "layer", "head")
        ]
        assert [own[name] for name in ("weight", "equal", "positions")] == pytest.approx(
            [other[name] for name in ("weight", "equal", "positions")]
        )


def test_contrasts_count_pools_and_their_windows(scans):
    _, pools, numbers = scans("llama")
    found = contrasts(pools)
    of_german = [len(one) for one, kind in zip(numbers, pools.by.values, strict=True) if kind == "de"]
    assert f"de ({len(of_german)} pools of {sum(of_german)} windows)" in describe_contrasts(found)[0]
    tokens = pools.length.values[pools.by == "de"].sum() / sum(of_german)
    assert found.length.sel(by="de").item() == pytest.approx(tokens)


def test_tasks_give_the_same_pools(corpus, tmp_path):
    given = {"window": WINDOW, "pool": SIZE, "by": "kind", "groups": "types", "statistics": "entropy,band_sum"}

    def scan(name, task=None):
        return attnscope.scan("bundled", corpus, out=tmp_path / name, task=task, device="cpu", show=False, **given)

    whole = scan("whole")
    assert not scan("run", "1/2").data_vars
    assert scan("run", "2/2").identical(whole)
    for part in ("windows", "heads"):
        first, other = (open_run(tmp_path / name, part=part) for name in ("whole", "run"))
        assert other.identical(first)
    assert "group_weight" in open_run(tmp_path / "run", part="heads")


def test_the_command_compares_values_and_groups_of_pools(corpus, tmp_path):
    out = tmp_path / "run"
    words = ("--by", "kind", "--groups", "types", "--pool", "2", "--window", "24", "--device", "cpu", "--legend")
    words = (*words, "--figures", "none", "--statistics", "entropy,band_sum")
    printed = " ".join(command("scan", "bundled", corpus, *words, "--out", out, cwd=tmp_path).stdout.split())
    assert "each of one value of kind" in printed
    assert re.search(r"\d+ windows \(\d+ tokens in all\) in \d+ pools", printed)
    assert "ifferences by kind" in (out / "report.html").read_text(encoding="utf-8")
