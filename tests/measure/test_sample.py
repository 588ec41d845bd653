"""The attention that a scan keeps for its page: what is listed, what is in tiles, and when it is read at all."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.reference import attend
from attnscope.measure import maps as _map_weights
from attnscope.measure import reader as _reader
from attnscope.measure import sample as _sample
from attnscope.measure.ranking import rank_heads
from attnscope.results.figures.scan import maps
from attnscope.store.arrays import unpacked
from attnscope.support.errors import AttnscopeError

TEXT = "The tide comes in twice a day, and twice a day it goes out again. " * 20


@pytest.fixture
def call():
    x = torch.randn(3, 1, 2, 300, 8, generator=torch.Generator().manual_seed(0))
    return AttentionCall(2 * x[0], x[1], x[2], scale=1.0, causal=True)


def matrix(call, head):
    return attend(call.query[0, head], call.key[0, head], call.value[0, head], call.allowed(0, head), 1.0)[1].numpy()


def test_enough_of_the_mass_is_listed_and_nothing_larger_is_left_out(call, monkeypatch):
    monkeypatch.setattr(_map_weights, "_SMALL", 0)
    counts, keys, weights, rest, _ = _map_weights.largest_weights(call, 1, room=10**6)
    full = matrix(call, 1)
    query = np.repeat(np.arange(300), counts)
    np.testing.assert_allclose(weights, full[query, keys], rtol=1e-5)
    np.testing.assert_allclose(rest, 1 - np.bincount(query, weights=weights), atol=1e-5)
    assert 0.95 <= weights.sum() / 300 < 0.99
    left = full.copy()
    left[query, keys] = 0
    among_its_rows_largest = weights >= np.sort(full, axis=1)[:, -8][query]
    assert left.max() < weights[~among_its_rows_largest].min()
    assert (counts >= np.minimum(8, (full > 2.0**-19.9).sum(1))).all()


def test_room_that_one_map_does_not_need_goes_to_the_others_in_any_order(call, monkeypatch):
    monkeypatch.setattr(_map_weights, "_EACH_ROW", 2)
    monkeypatch.setattr(_map_weights, "_SMALL", 0)
    call = dataclasses.replace(call, scale=0.3)
    sharp = dataclasses.replace(call, scale=1.0)
    every = {(0, head): _map_weights.largest_weights(call, head, 10**6) for head in range(2)} | {
        (1, head): _map_weights.largest_weights(sharp, head, 10**6) for head in range(2)
    }
    sizes = {place: len(parts[1]) for place, parts in every.items()}
    assert max(sizes[1, head] for head in range(2)) < 5_000 < min(sizes[0, head] for head in range(2))
    shared = {}
    for order in (list(every), list(every)[::-1]):
        maps = {}
        for place in order:
            maps[place] = every[place]
            _map_weights.share_room([maps], 20_000)
        shared[order[0]] = maps
    for place, parts in shared[0, 0].items():
        for ours, theirs in zip(parts, shared[1, 1][place], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        counts, keys, weights, rest, few = parts
        np.testing.assert_allclose(np.bincount(np.repeat(np.arange(300), counts), weights) + rest, 1, atol=1e-5)
        assert len(keys) == len(weights) == len(few) == counts.sum()
        assert counts.min() >= 1
    least = {(0, 0): every[0, 0]}
    _map_weights.share_room([least], 100)  # less than the few of every row
    assert least[0, 0][4].sum() == every[0, 0][4].sum() == len(least[0, 0][1])
    maps = shared[0, 0]
    assert all(len(maps[1, head][1]) == sizes[1, head] for head in range(2))
    assert 19_900 < sum(len(parts[1]) for parts in maps.values()) <= 20_000 + 2 * 2 * 300
    cut = maps[0, 0]
    left = attend(*(part[0, 0] for part in (call.query, call.key, call.value)), call.allowed(0, 0), 0.3)[1].numpy()
    left[np.repeat(np.arange(300), cut[0]), cut[1]] = 0
    assert left.max() <= cut[2][~cut[4]].min() * (1 + 1e-5)


def test_tiles_are_sums_and_maxima(call):
    total, most = _map_weights.in_tiles(call, 0, 64)
    padded = np.zeros((320, 320), np.float32)
    padded[:300, :300] = matrix(call, 0)
    tiled = padded.reshape(5, 64, 5, 64)
    np.testing.assert_allclose(total, tiled.sum((1, 3)), rtol=1e-5)
    np.testing.assert_allclose(most, tiled.max((1, 3)), rtol=1e-5)


def kept(folder):
    return unpacked((folder / "sample.npz").read_bytes())


def test_a_sample_is_stored_only_if_shown_and_added_to_a_finished_run(tmp_path):
    folder = tmp_path / "run"
    attnscope.scan(texts=[TEXT], out=folder, show=False)
    assert not (folder / "sample.npz").exists()
    attnscope.scan(texts=[TEXT], out=folder, show=[])
    sample = kept(folder)
    found = list(maps(sample))
    assert {one.window for one in found} == {0, 1, 2}
    assert all(one.share == pytest.approx(1, abs=1e-4) for one in found)
    assert len(found) == 3 * 12


def test_where_nothing_ranks_heads_those_furthest_from_equal_weights_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(_sample, "WEIGHTS", 1)
    result = attnscope.scan(texts=[TEXT], out=tmp_path / "run", show=[], statistics="learned_sink,top_key")
    assert rank_heads(result) == {"sink-like": []}
    away = abs(result.top_key - result.equal_top_key).mean("window").transpose("layer", "head").values
    furthest = np.argsort(-away, axis=None)[:5]
    expected = {tuple(map(int, np.unravel_index(place, away.shape))) for place in furthest}
    assert {(one.layer, one.head) for one in maps(kept(tmp_path / "run"))} == expected


def test_requested_heads_are_listed_where_there_is_no_room_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(_sample, "WEIGHTS", 1)
    monkeypatch.setattr(_sample, "rank_heads", lambda _: {})
    monkeypatch.setattr(_sample, "heads_far_from_uniform", lambda _: None)
    attnscope.scan(texts=[TEXT], out=tmp_path / "run", show=[(2, 1)])
    sample = kept(tmp_path / "run")
    assert {(one.layer, one.head) for one in maps(sample)} == {(2, 1)}
    assert np.isfinite(sample.tile_sum.values).all((2, 3)).sum() == 11
    np.testing.assert_allclose(sample.tile_sum.sel(layer=0).sum(("tile_query", "tile_key")), 128, rtol=1e-5)
    attnscope.scan(texts=[TEXT], out=tmp_path / "run", show=[(0, 3)])
    assert json.loads(kept(tmp_path / "run").attrs["requested"]) == [[0, 3]]


def test_a_long_window_is_stored_in_blocks_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(_reader, "ROWS", 64)
    monkeypatch.setattr(_map_weights, "SIDE", 16)
    attnscope.scan(texts=[TEXT], out=tmp_path / "run", show=[])
    sample = kept(tmp_path / "run")
    assert sample.attrs["block"] == 8
    assert sample.block_sum.shape == (3, 4, 16, 16)
    for shown in (each for each in maps(sample) if each.window == 0):
        full = np.zeros((128, 128))
        full[shown.query, shown.key] = shown.weight
        tiled = full.reshape(16, 8, 16, 8)
        at = {"layer": shown.layer, "head": shown.head}
        np.testing.assert_allclose(sample.block_sum.sel(at), tiled.sum((1, 3)), atol=1e-3)
        np.testing.assert_allclose(sample.block_max.sel(at), tiled.max((1, 3)), atol=1e-5)


def test_a_head_that_does_not_exist_is_rejected(tmp_path):
    for place in [(3, 0), (2, 4)]:
        said = rf"no head {place[0]}.{place[1]} \(show, --show\): layers go from 0 to 2, heads from 0 to 3"
        with pytest.raises(AttnscopeError, match=said):
            attnscope.scan(texts=[TEXT], out=tmp_path / "run", show=[place])
        assert not (tmp_path / "run").exists()  # told before any text is measured


def test_the_progress_counts_what_is_read_for_the_page(tmp_path):
    told = []
    attnscope.scan(texts=[TEXT], out=tmp_path / "run", show=[], progress=told.append)
    windows = told[-1].details["windows"]
    measured = [one.share for one in told if one.details["windows"] == windows]
    assert measured[0] < 0.7
    assert measured[-1] == pytest.approx(1)
    assert len(measured) >= 9  # three layers of three windows
    assert [one.share for one in told] == sorted(one.share for one in told)
