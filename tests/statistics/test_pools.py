"""Pools of windows: the sums of their windows, whatever the model, and as many processes as there are."""

import json
import random
from functools import cache
from itertools import groupby, pairwise
from shutil import copytree
from types import SimpleNamespace

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.measure.labels import with_rows
from attnscope.measure.pools import in_pools
from attnscope.results.describe import headline_of
from tests.families import tiny
from tests.statistics.test_targets import TARGETS, TEXTS
from tests.translation.small_translators import small_model, small_tokenizer

SIZE = 3
WORDS = ["the", "tide", "comes", "in", "over", "sand", "boats", "lie", "on", "mud", "until", "it", "goes", "out"]


@pytest.mark.parametrize("seed", range(3))
def test_pools_are_of_whole_documents_or_of_parts_of_one(seed):
    rng = random.Random(seed)
    documents = [[SimpleNamespace(source=name, by="")] * rng.choice([1, 1, 2, 3, 5, 7, 20]) for name in range(12)]
    windows = [window for document in documents for window in document]
    numbered = list(in_pools(enumerate(windows), SIZE))
    assert [number for pool in numbered for number in pool] == list(range(len(windows)))
    pools = [list(pool.values()) for pool in numbered]
    assert [window for pool in pools for window in pool] == windows
    assert max(map(len, pools)) < 3 * SIZE - 1
    long = {document[0].source for document in documents if len(document) >= 2 * SIZE}
    sources = [{window.source for window in pool} for pool in pools]
    for before, after in pairwise(sources):
        assert before.isdisjoint(after) or before == after <= long  # parts of one long document


def test_a_small_pool_is_only_before_a_long_document_or_the_last():
    windows = [SimpleNamespace(source=name, by="") for name in "a" + "b" * 7 + "ccd"]
    assert ["".join(one.source for one in pool.values()) for pool in in_pools(enumerate(windows), SIZE)] == [
        "a",
        "bbb",
        "bbbb",
        "ccd",
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_is_of_one_value_and_the_parts_of_a_document_follow_each_other(seed):
    rng = random.Random(seed)
    values = rng.choice([2, 5, 100])
    documents = [
        [SimpleNamespace(source=name, by=str(rng.randrange(values)))] * rng.choice([1, 1, 2, 3, 7])
        for name in range(200)
    ]
    windows = [window for document in documents for window in document]
    pools = list(in_pools(enumerate(windows), SIZE))
    assert sorted(number for pool in pools for number in pool) == list(range(len(windows)))
    assert all(windows[number] is window for pool in pools for number, window in pool.items())
    assert all(len({window.by for window in pool.values()}) == 1 for pool in pools)
    assert all(list(pool) == sorted(pool) for pool in pools)
    sources = [name for pool in pools for name in dict.fromkeys(one.source for one in pool.values())]
    assert len({name for name, _ in groupby(sources)}) == sum(1 for _ in groupby(sources))
    alone = [window for window in windows if window.by == "1"]
    if values == 2:  # nothing is closed before its time: what others there are between makes no difference
        of_value = [list(pool.values()) for pool in pools if next(iter(pool.values())).by == "1"]
        assert of_value == [list(pool.values()) for pool in in_pools(enumerate(alone), SIZE)]


def test_windows_that_wait_are_as_few_whatever_the_number_of_values():
    read = 0

    def reading():
        nonlocal read
        for name in range(10_000):
            read += 1
            yield SimpleNamespace(source=name, by=str(name % 1000))

    given = most = 0
    for pool in in_pools(enumerate(reading()), 10):
        given += len(pool)
        most = max(most, read - given)
    assert given == 10_000
    assert most <= 8 * 10 + 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rng = random.Random(0)
    lengths = [5, 30, 90, 12, 8, 40, 21, 9, 60]
    texts = [" ".join(rng.choices(WORDS, k=length)) for length in lengths]
    path = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return path


def rows_of(windows, kind):
    return windows.length if kind == "self" or "target_length" not in windows else windows.target_length


@pytest.fixture(scope="module")
def scans(corpus):
    """A scan window by window, and the same in pools, by the name of a model."""

    @cache
    def both(name):
        if name == "bart":
            given = (small_model("bart"), TEXTS)
            more = {"targets": TARGETS, "tokenizer": small_tokenizer(), "band": 3}
        elif name == "bundled":
            given, more = ("bundled", corpus), {"window": 24}
        else:
            given, more = (tiny(name), corpus), {"window": 24, "tokenizer": small_tokenizer()}
        more |= {"device": "cpu"} if isinstance(given[0], str) else {}
        return attnscope.scan(*given, **more), attnscope.scan(*given, pool=SIZE, **more)

    return both


@pytest.fixture(scope="module")
def kept(corpus, tmp_path_factory):
    """A finished run in pools, and what it returned."""
    out = tmp_path_factory.mktemp("kept") / "run"
    return out, attnscope.scan("bundled", corpus, window=24, pool=SIZE, device="cpu", out=out, show=False)


@pytest.mark.parametrize("name", ["bundled", "llama", "bart"])
def test_every_statistic_of_a_pool_is_of_all_rows_of_its_windows(name, scans):
    windows, pools = scans(name)
    assert pools.window_count.sum() == windows.sizes["window"]
    ends = np.cumsum(pools.window_count.values)
    for pool, end in enumerate(ends):
        some = windows.isel(window=slice(end - int(pools.window_count[pool]), end))
        for layer, kind in enumerate(windows.layer_kind.values):
            rows = rows_of(some, kind).values.astype(float)
            keys = rows if kind == "causal" else some.length.values
            for statistic in ("band_sum", "bin_sum", "equal_band_sum", "equal_bin_sum"):
                expected = some[statistic].isel(layer=layer).values.sum(0)
                np.testing.assert_allclose(pools[statistic][pool, layer].values, expected, rtol=1e-5, atol=1e-5)
            for statistic in ("entropy", "first_token", "mean_offset", "outside", "max_weight", "equal_entropy"):
                values = some[statistic].isel(layer=layer).values
                mean = np.average(values, axis=0, weights=rows)
                np.testing.assert_allclose(pools[statistic][pool, layer].values, mean, rtol=1e-5, atol=1e-5)
                if not statistic.startswith("equal"):
                    expected = np.average((values - mean) ** 2, axis=0, weights=rows)
                    found = pools[f"{statistic}_variance"][pool, layer].values
                    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
            offset = windows.offset.values
            count = np.array(
                [
                    sum(0 <= query + t < n for m, n in zip(rows, keys, strict=True) for query in range(int(m)))
                    for t in offset
                ]
            )
            expected = some.band_sum.isel(layer=layer).values.sum(0) / np.where(count > 0, count, np.nan)
            np.testing.assert_allclose(pools.profile[pool, layer].values, expected, rtol=1e-5, atol=1e-6)


def test_what_pools_have_says_what_it_is(scans):
    windows, pools = scans("bundled")
    assert {name: pools[name].attrs for name in windows if name in pools and windows[name].attrs} == {
        name: windows[name].attrs for name in windows if name in pools and windows[name].attrs
    }
    assert pools.mean_offset.attrs["units"] == "tokens"
    assert pools.mean_offset_variance.attrs["units"] == "tokens²"
    assert pools.mean_offset_variance.attrs["long_name"].endswith("variance over windows")


def test_what_is_on_the_left_is_of_each_window_not_of_their_mean(scans):
    """It depends on a window's length and mean offset together: from means alone it would be another."""
    windows, pools = scans("bundled")
    of_windows = with_rows(windows, windows.length).columns_left.values
    first = int(pools.window_count[0])
    expected = np.average(of_windows[:first], axis=0, weights=windows.length[:first])
    found = with_rows(pools, pools.length).columns_left.values[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    alone = with_rows(pools.drop_vars("columns_left"), pools.length).columns_left.values[0]
    assert np.abs(alone - expected).max() > 0.01


def test_kinds_are_those_of_all_texts_together(scans):
    windows, pools = scans("bundled")
    first = [0, 1, 2, 3]  # the bundled model's positional heads
    for name in (windows, pools):
        kinds = name.cluster.values[name.label_share.argmax("cluster").values][0]
        assert kinds[first].tolist() == ["offset -2", "next", "offset +2", "previous"]


def test_windows_are_kept_in_short_and_one_of_each_pool_in_full(scans, kept):
    windows, _ = scans("bundled")
    run, pools = kept
    assert "pooled_window" not in pools.dims
    short = open_run(run, part="windows")
    assert short.pooled_window.values.tolist() == windows.window.values.tolist()
    assert short.window_source.values.tolist() == windows.source.values.tolist()
    for name in ("entropy", "first_token", "mean_offset", "max_weight"):
        np.testing.assert_allclose(short[f"window_{name}"].values, windows[name].values, rtol=1e-5, atol=1e-5)
        assert short[f"window_{name}"].dtype == np.float32
    starts = np.cumsum([0, *pools.window_count.values])
    there = [
        [np.allclose(drawn, windows.band_sum[start + i].values, rtol=1e-5, atol=1e-5) for i in range(int(count))]
        for drawn, start, count in zip(pools.drawn_band_sum.values, starts[:-1], pools.window_count.values, strict=True)
    ]
    assert all(sum(found) == 1 for found in there)
    alike = [found.index(True) for found in there if len(found) == SIZE]
    assert len(set(alike)) > 1  # not always the first, or another one


def test_what_is_lost_of_the_windows_is_measured_again(corpus, kept, tmp_path):
    given = {"window": 24, "pool": SIZE, "device": "cpu", "out": tmp_path / "run"}
    run, whole = kept
    short = open_run(run, part="windows")
    copytree(run, tmp_path / "run")
    next((tmp_path / "run" / "windows").iterdir()).unlink()
    with pytest.raises(AttnscopeError, match="--repair"):
        attnscope.scan("bundled", corpus, **given)
    assert attnscope.scan("bundled", corpus, repair=True, **given).identical(whole)
    assert open_run(tmp_path / "run", part="windows").identical(short)


def test_what_is_said_of_a_scan_in_pools_is_said_of_pools(kept):
    """Of a pool only the first document is kept: no number of documents is known."""
    _, pools = kept
    assert json.loads(pools.attrs["summary"])["intervals_over"].startswith("pools")
    assert "pools" in attnscope.expect(pools, layer=0, head=0).statistic("entropy").over
    changed = pools.assign(entropy=pools.entropy + np.random.default_rng(0).random(pools.entropy.shape))
    [said] = headline_of("diff", attnscope.diff(pools, changed, statistics=["entropy"]))[:1]
    assert "pools" in said
    assert "documents" not in said.replace("pools of different documents", "")
