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
from tests.measure.test_targets import TARGETS, TEXTS
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny

SIZE = 3
WORDS = ["the", "tide", "comes", "in", "over", "sand", "boats", "lie", "on", "mud", "until", "it", "goes", "out"]


def test_a_small_pool_is_only_before_a_long_document_or_the_last():
    windows = [SimpleNamespace(source=name, by="") for name in "a" + "b" * 7 + "ccd"]
    assert ["".join(one.source for one in pool.values()) for pool in in_pools(enumerate(windows), SIZE)] == [
        "a",
        "bbb",
        "bbbb",
        "ccd",
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_is_of_one_value_and_of_whole_documents_or_of_parts_of_one(seed):
    rng = random.Random(seed)
    values = rng.choice([1, 2, 5, 100])
    lengths = [1, 1, 2, 3, 5, 7, 20]
    documents = [
        [SimpleNamespace(source=name, by=str(rng.randrange(values)))] * rng.choice(lengths) for name in range(200)
    ]
    windows = [window for document in documents for window in document]
    pools = list(in_pools(enumerate(windows), SIZE))
    assert sorted(number for pool in pools for number in pool) == list(range(len(windows)))
    assert all(windows[number] is window for pool in pools for number, window in pool.items())
    assert all(len({window.by for window in pool.values()}) == 1 for pool in pools)
    assert all(list(pool) == sorted(pool) for pool in pools)
    assert max(map(len, pools)) < 3 * SIZE - 1
    sources = [name for pool in pools for name in dict.fromkeys(one.source for one in pool.values())]
    assert len({name for name, _ in groupby(sources)}) == sum(1 for _ in groupby(sources))
    for value in ("0", "1") if values <= 2 else ():
        # nothing is closed before its time: windows of other values between make no difference
        alone = [window for window in windows if window.by == value]
        of_value = [list(pool.values()) for pool in pools if next(iter(pool.values())).by == value]
        assert of_value == [list(pool.values()) for pool in in_pools(enumerate(alone), SIZE)]
        long = {document[0].source for document in documents if len(document) >= 2 * SIZE}
        for before, after in pairwise({window.source for window in pool} for pool in of_value):
            assert before.isdisjoint(after) or before == after <= long  # parts of one long document


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


def test_what_pools_have_is_described_and_of_each_window_not_of_their_mean(scans):
    """Weight on the left depends on a window's length and mean offset together."""
    windows, pools = scans("bundled")
    described = [name for name in windows if name in pools and windows[name].attrs]
    assert all(pools[name].attrs == windows[name].attrs for name in described)
    assert pools.mean_offset_variance.attrs["units"] == f"{pools.mean_offset.attrs['units']}²" == "tokens²"
    for one in (windows, pools):  # the bundled model's positional heads
        kinds = one.cluster.values[one.label_share.argmax("cluster").values][0]
        assert kinds.tolist() == ["offset -2", "next", "offset +2", "previous"]
    of_windows = with_rows(windows, windows.length).columns_left.values
    first = int(pools.window_count[0])
    expected = np.average(of_windows[:first], axis=0, weights=windows.length[:first])
    found = with_rows(pools, pools.length).columns_left.values[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    alone = with_rows(pools.drop_vars("columns_left"), pools.length).columns_left.values[0]
    assert np.abs(alone - expected).max() > 0.01


def test_windows_are_stored_in_short_and_one_of_each_pool_in_full(scans, kept):
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


def test_findings_of_a_scan_in_pools_are_over_pools(kept):
    """Of a pool only the first document is kept: no number of documents is known."""
    _, pools = kept
    assert json.loads(pools.attrs["summary"])["intervals_over"].startswith("pools")
    assert "pools" in attnscope.expect(pools, layer=0, head=0).statistic("entropy").over
    changed = pools.assign(entropy=pools.entropy + np.random.default_rng(0).random(pools.entropy.shape))
    [said] = headline_of("diff", attnscope.diff(pools, changed, statistics=["entropy"]))[:1]
    assert "pools" in said
    assert "documents" not in said.replace("pools of different documents", "")
