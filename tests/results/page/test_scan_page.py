"""The page as a file: what it holds, what it cannot hold, how large it grows, how it is written."""

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.results.page.parts import deflated_json, pack_received, pack_windows
from attnscope.results.page.scan import page_data
from attnscope.results.scan_report import sample_of
from attnscope.support.errors import AttnscopeError
from tests.results.page.planted_result import in_tiles, planted, scan_page


@pytest.fixture(scope="module")
def made():
    return planted()


def embedded(page, element):
    """The JSON value of a data element of a page."""
    found = re.search(rf'<script type="application/json" id="{element}">(.*?)</script>', page)
    return json.loads(found.group(1))


def inflated(packed):
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def weigh(code):
    return np.where(code > 0, 2.0 ** ((code - 255) * 16 / 254), 0.0)


def unpack(packed, tokens):
    """Counts, rest, keys and weights of one map, read back from the description in the module's docstring."""
    plain = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=np.uint8).astype(int)
    low, high, rest = plain[: 3 * tokens].reshape(3, tokens)
    counts = low + 256 * high
    step_low, step_high, codes = plain[3 * tokens :].reshape(3, counts.sum())
    rows = np.split(step_low + 256 * step_high, np.cumsum(counts)[:-1])
    return counts, weigh(rest), np.concatenate([np.cumsum(row) for row in rows]), weigh(codes)


def test_packed_weights_come_back_within_the_stated_error(made):
    windows = pack_windows(made.sample)
    for index, at in enumerate(np.ndindex(made.kinds.shape)):
        packed, share = windows.maps[f"0.{index}"]
        counts, rest, keys, weights = unpack(packed, 32)
        true_keys, true = made.listed(*at)
        kept = true >= 2.0**-16.03  # as it is rounded
        assert counts.tolist() == kept.sum(1).tolist()
        np.testing.assert_array_equal(keys, true_keys[kept])
        np.testing.assert_allclose(weights, true[kept], rtol=0.0221)
        np.testing.assert_allclose(rest, 1 - true.sum(1), rtol=0.0221, atol=2.0**-15)
        assert share == pytest.approx(true.sum() / 32, abs=1e-3)


def test_lines_of_received_attention_come_back_and_no_share_is_lost():
    text = "The tide comes in twice a day, and twice a day it goes out again. " * 4
    sample = sample_of(attnscope.scan(texts=text, statistics="recent_top_key,profile", show=[(0, 3)]))
    packed = pack_received(sample, [[10]])
    line, most, top, recent = packed["heads"]["0.3"]
    received = sample.received.values[0, 0, 3]
    share = received[np.isfinite(received)] / np.nansum(received)
    found = weigh(np.frombuffer(line.encode("latin-1"), np.uint8).astype(int)) * most
    np.testing.assert_allclose(found, share, rtol=0.0225)  # the largest has four digits
    assert [key for key, *_ in top][:3] == np.argsort(-share)[:3].tolist()
    np.testing.assert_allclose([part for _, part, _ in top], share[[key for key, *_ in top]], rtol=0.005)
    assert recent
    assert inflated(deflated_json(packed))["heads"] == packed["heads"]


def test_attention_received_is_left_out_where_no_key_has_twice_its_uniform_share():
    made = planted(layers=1, heads=3, tokens=32)
    equal = np.full((1, 1, 32), 1.0)
    received = np.ones((1, 1, 3, 32))
    received[0, 0, 1, 5], received[0, 0, 2, 5] = 2.1, 2.0  # of 33.1 and of 33: 2.03 and 1.94 times their share
    dims = ("window", "layer", "head", "key_position")
    names = ("window", "key_position"), np.array([["a"] * 32], dtype=object)
    sample = made.sample.assign(received=(dims, received), equal_received=((dims[0], dims[1], dims[3]), equal))
    packed = pack_received(sample.assign_coords(position_token=names), [[32]])
    assert [*packed["heads"]] == ["0.1"]


def test_tiles_hold_what_lies_in_them():
    made = planted(layers=2, heads=2, tokens=32, rank=32)
    windows = pack_windows(in_tiles(made, (1, 0), 8))
    assert set(windows.maps) == {"0.0", "0.1", "0.3"}
    plain = np.frombuffer(zlib.decompress(base64.b64decode(windows.tiles["2"])), dtype=np.uint8).astype(int)
    total, most = (2.0 ** ((plain - 255) * 16 / 254)).reshape(2, 4, 4)
    true = made.listed(1, 0)[1].reshape(4, 8, 4, 8)
    np.testing.assert_allclose(total, true.sum((1, 3)) / 8, rtol=0.0221)
    np.testing.assert_allclose(most, true.max((1, 3)), rtol=0.0221)


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    return scan_page(made.result, made.sample, tmp_path_factory.mktemp("page") / "r.html").read_text("utf-8")


def test_numbers_are_those_of_the_result(made, page):
    data = embedded(page, "data")
    entropy = next(s for s in data["quantities"] if s["key"] == "entropy")
    values = made.result["entropy"].values.reshape(12, -1)
    np.testing.assert_allclose(entropy["values"], values.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(entropy["low"], np.quantile(values, 0.1, axis=0), rtol=1e-4)
    assert all(sum(counts["n"]) == 12 for counts in inflated(entropy["counts"]))
    np.testing.assert_allclose(
        data["profile"]["mean"], made.result["profile"].mean("window").values.reshape(16, 21), rtol=1e-4, atol=1e-12
    )
    shares = np.array(data["labels"]["shares"])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-4)
    assert data["labels"]["names"][shares[0].argmax()] == "next-to-left"


def test_title_corpus_signature_and_summary_are_on_the_page(page):
    assert "<title>Where the heads of planted-heads attend</title>" in page
    for words in ("12 windows", "3f9c1a7e", "icc, directed heads", "0.774 to 0.846"):
        assert words in page
    assert "mixing coefficients, not explanations" in page


@pytest.mark.parametrize(
    "drop",
    [
        ["label", "cluster", "centroid"],
        ["profile", "band_sum"],
        ["length", "source", "layer_name", "layer_kind"],
        ["entropy", "first_token", "special_tokens", "majority_share", "direction"],
    ],
)
def test_what_the_user_left_out_is_left_out(made, tmp_path, drop):
    assert scan_page(made.result.drop_vars(drop), made.sample, tmp_path / "r.html").exists()
    assert scan_page(made.result.drop_vars(drop), None, tmp_path / "r.html").exists()


def test_missing_heads_and_constant_values_are_no_obstacle(made):
    result = made.result.copy(deep=True)
    result["entropy"][:, 3, 3] = np.nan
    result["entropy"][:, 0, 0] = 2.0
    result["profile"][:, 3, 3] = np.nan
    result["label"][:, 3, 3] = -1
    data = page_data(result)
    entropy = data["quantities"][0]
    assert entropy["values"][15] is None
    counts = inflated(entropy["counts"])
    assert counts[15] is None
    assert sum(counts[0]["n"]) == 12
    assert data["labels"]["shares"][15] == [None] * 6
    json.dumps(data, allow_nan=False)


def test_a_failed_write_leaves_the_old_page_and_no_rest(made, tmp_path, monkeypatch):
    path = scan_page(made.result, None, tmp_path / "r.html")
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(AttnscopeError, match="no space left on device"):
        scan_page(made.result, made.sample, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, path: scan_page(m.result, m.sample.drop_vars("key"), path), "needs key"),
        (lambda m, path: scan_page(m.result[["length", "layer", "head"]], None, path), "labels to report"),
        (lambda m, path: scan_page(m.result, None, path.parent), "cannot write the report"),
        (lambda m, path: scan_page(m.result, None, path.parent / "file" / "r.html"), "cannot write"),
    ],
)
def test_errors_name_what_is_wrong(made, tmp_path, call, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(AttnscopeError, match=message):
        call(made, tmp_path / "r.html")


def test_the_page_says_what_a_number_under_a_token_means_where_there_is_one(made, tmp_path):
    split = ["猫₁", "猫₂", "猫₃", *made.sample["token"].values[0, 3:]]
    for tokens, says in ((split, True), (list(made.sample["token"].values[0]), False)):
        sample = made.sample.assign_coords(token=(("window", "query"), np.array([tokens], dtype=object)))
        page = scan_page(made.result, sample, tmp_path / "page.html").read_text(encoding="utf-8")
        assert ("猫₁ 猫₂ 猫₃ are the pieces of one" in page) is says


def test_keys_beyond_two_bytes_are_among_the_rest(made):
    sample = made.sample.assign(key=made.sample["key"] + 2**16)
    counts, rest, _, _ = unpack(pack_windows(sample).maps["0.0"][0], 32)
    assert not counts.any()
    np.testing.assert_allclose(rest, 1, rtol=0.0221)


def test_size_does_not_grow_with_the_number_of_texts(tmp_path):
    few, many = (
        scan_page(planted(texts=texts).result, None, tmp_path / f"{texts}.html").stat().st_size for texts in (20, 200)
    )
    assert many < 1.1 * few
