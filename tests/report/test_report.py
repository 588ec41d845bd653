"""The page as a file: what it holds, what it cannot hold, how large it grows, how it is written."""

import base64
import json
import math
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from planted_result import HOSTILE, planted, translated

from attnscope.errors import AttnscopeError
from attnscope.report import window as window_module
from attnscope.report import write_report
from attnscope.report.content import flatten, page_data
from attnscope.report.embed import script_json
from attnscope.report.window import encode, pack_window


@pytest.fixture(scope="module")
def made():
    return planted()


def embedded(page, element):
    """The JSON value of a data element of a page."""
    found = re.search(rf'<script type="application/json" id="{element}">(.*?)</script>', page)
    return json.loads(found.group(1))


def unpack(packed, tokens, ranks):
    """Keys, weights and rest of one head, read back from the description in the module's docstring."""
    plain = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=np.uint8)
    low, high, steps = plain[: 3 * tokens * ranks].reshape(3, tokens, ranks).astype(int)
    codes = np.concatenate([steps[:, :1], steps[:, :1] - np.cumsum(steps[:, 1:], axis=1)], axis=1)
    weigh = lambda code: np.where(code > 0, 2.0 ** ((code - 255) * 16 / 254), 0.0)  # noqa: E731
    return low + 256 * high, weigh(codes), weigh(plain[3 * tokens * ranks :].astype(int))


# --- the sample window ---


def test_packed_weights_come_back_within_the_stated_error(made):
    window = pack_window(made.sample)
    for index, at in enumerate(np.ndindex(made.kinds.shape)):
        keys, weights, rest = unpack(window.heads[index], 32, 8)
        true = made.sample["weight"].values[at]
        kept = true >= 2.0**-16
        np.testing.assert_array_equal(keys[kept], made.sample["key"].values[at][kept])
        np.testing.assert_allclose(weights[kept], true[kept], rtol=0.0221)
        assert (weights[~kept] == 0).all()
        np.testing.assert_allclose(rest, made.sample["rest"].values[at], rtol=0.0221, atol=2.0**-16)


def test_the_scale_is_exact_at_powers_of_two_down_to_its_floor():
    assert encode(np.array([1.0])).tolist() == [255]
    codes = np.arange(1, 256)
    assert encode(2.0 ** ((codes - 255) * 16 / 254)).tolist() == codes.tolist()


def test_order_of_the_ranks_does_not_matter(made):
    turned = made.sample.isel(rank=slice(None, None, -1))
    assert pack_window(turned).heads == pack_window(made.sample).heads


def test_too_many_weights_are_cut_and_accounted_for(made, monkeypatch):
    monkeypatch.setattr(window_module, "_MOST_WEIGHTS", 16 * 32 * 3)
    window = pack_window(made.sample)
    assert window.shared["ranks"] == 3
    assert window.shared["complete"] is False
    for packed in window.heads:
        _, weights, rest = unpack(packed, 32, 3)
        np.testing.assert_allclose(weights.sum(axis=1) + rest, 1.0, rtol=0.03)


def test_a_long_window_is_cut_to_its_first_tokens(made, monkeypatch):
    monkeypatch.setattr(window_module, "_MOST_TOKENS", 10)
    window = pack_window(made.sample)
    assert len(window.shared["texts"][0]["tokens"]) == 10
    assert window.shared["texts"][0]["total"] == 32
    assert unpack(window.heads[0], 10, 8)[0].shape == (10, 8)


@pytest.mark.parametrize(
    ("kind", "rows", "sides"), [("cross", 5, [1, 0]), ("causal", 5, [1, 1]), ("self", 32, [0, 0])]
)
def test_a_head_has_the_rows_of_its_own_text(made, kind, rows, sides):
    window = pack_window(translated(made.sample, kind, tokens=5))
    assert window.shared["sides"] == [sides] * 4
    assert [len(text["tokens"]) for text in window.shared["texts"]] == [32, 5]
    assert unpack(window.heads[0], rows, 8)[0].shape == (rows, 8)


def test_keys_beyond_two_bytes_are_refused(made):
    sample = made.sample.assign(key=made.sample["key"].astype("int32") + 2**16)
    with pytest.raises(AttnscopeError, match="beyond position 65535"):
        pack_window(sample)


# --- what the page says ---


def test_numbers_are_those_of_the_result(made, tmp_path):
    page = write_report(made.result, made.sample, tmp_path / "r.html").read_text(encoding="utf-8")
    data = embedded(page, "data")
    entropy = next(s for s in data["statistics"] if s["key"] == "entropy")
    values = made.result["entropy"].values.reshape(12, -1)
    np.testing.assert_allclose(entropy["mean"], values.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(entropy["low"], np.quantile(values, 0.1, axis=0), rtol=1e-4)
    assert all(sum(counts["n"]) == 12 for counts in entropy["counts"])
    np.testing.assert_allclose(
        data["profile"]["mean"],
        made.result["profile"].mean("text").values.reshape(16, 21),
        rtol=1e-4,
        atol=1e-12,
    )
    shares = np.array(data["labels"]["shares"])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-4)
    assert data["labels"]["names"][shares[0].argmax()] == "next-to-left"


def test_title_corpus_signature_and_summary_are_on_the_page(made, tmp_path):
    page = write_report(made.result, made.sample, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<title>Where the heads of planted-heads look</title>" in page
    assert "12 texts" in page
    assert "a made-up text" in page
    assert "3f9c1a7e" in page
    assert "icc, directed heads" in page
    assert "0.774 to 0.846" in page
    assert "mixing coefficients, not explanations" in page


def test_nothing_can_be_loaded(made, tmp_path):
    page = write_report(made.result, made.sample, tmp_path / "r.html").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    assert '<html lang="en">' in page
    assert '<meta charset="utf-8">' in page
    assert set(re.findall(r"https?://[^\"'\s]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"<(link|iframe|object|embed|img)\b|\bsrc=|@import|url\((?!#)", page.replace("`url(#", "")
    )


def test_hostile_text_cannot_end_a_script_or_become_markup(made, tmp_path):
    sample, result = made.sample.copy(deep=True), made.result.copy(deep=True)
    sample["token"].values[: len(HOSTILE)] = HOSTILE
    evil = HOSTILE[0]
    result.attrs.update(
        model=evil, signature=json.dumps({"corpus": {"name": evil}}), summary=json.dumps({evil: evil})
    )
    result["entropy"].attrs["long_name"] = evil
    result["cluster_name"] = result["cluster_name"].astype(object)
    result["cluster_name"].values[0] = evil
    page = write_report(result, sample, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")
    assert embedded(page, "data")["window"]["texts"][0]["tokens"][: len(HOSTILE)] == HOSTILE


@pytest.mark.parametrize("token", HOSTILE)
def test_embedded_json_is_safe_and_faithful(token):
    text = script_json([token])
    assert json.loads(text) == [token]
    assert text.isascii()
    assert not set("<>&") & set(text)


@pytest.mark.parametrize(
    "drop",
    [
        ["label", "cluster_name", "centroid"],
        ["profile", "band_sum"],
        ["centroid"],
        ["length", "source", "layer_name", "layer_kind"],
        ["entropy", "first_token", "special_tokens", "majority_share", "direction"],
    ],
)
def test_what_the_user_left_out_is_left_out(made, tmp_path, drop):
    assert write_report(made.result.drop_vars(drop), made.sample, tmp_path / "r.html").exists()
    assert write_report(made.result.drop_vars(drop), None, tmp_path / "r.html").exists()


def test_missing_heads_and_constant_values_are_no_obstacle(made):
    result = made.result.copy(deep=True)
    result["entropy"][:, 3, 3] = np.nan
    result["entropy"][:, 0, 0] = 2.0
    result["profile"][:, 3, 3] = np.nan
    result["label"][:, 3, 3] = -1
    data = page_data(result)
    entropy = data["statistics"][0]
    assert entropy["mean"][15] is None
    assert entropy["counts"][15] is None
    assert sum(entropy["counts"][0]["n"]) == 12
    assert data["labels"]["shares"][15] == [None] * 6
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    ("summary", "rows"),
    [
        ({}, []),
        (3, [("", "3", "")]),
        ("note", [("", "note", "")]),
        ({"icc": {"estimate": 0.5, "interval": [0.4, 0.6]}}, [("icc", "0.5", "0.4 to 0.6")]),
        ({"a_b": [1, -2.5]}, [("a b", "1; −2.5", "")]),
        ({"a": [{"mean": 1.0, "n": 4}]}, [("a, 0", "1", ""), ("a, 0, n", "4", "")]),
        ({"done": True, "left": None}, [("done", "yes", "")]),
        (
            {"icc": {"value": None, "low": None, "high": None}, "heads": 2},
            [("heads", "2", "")],
        ),  # too few heads
        ({"icc": {"value": math.nan, "interval": [math.nan, math.nan]}}, []),
        ({"icc": {"value": 0.5, "low": None, "high": None}}, [("icc", "0.5", "")]),
    ],
)
def test_any_summary_becomes_rows(summary, rows):
    assert list(flatten(summary)) == rows


@pytest.mark.parametrize("text", ["not json", "[1, 2", '"only a word"', "[]"])
def test_any_signature_is_shown(made, tmp_path, text):
    result = made.result.assign_attrs(signature=text, summary=text)
    assert write_report(result, None, tmp_path / "r.html").exists()


# --- size ---


def test_size_does_not_grow_with_the_number_of_texts(tmp_path):
    few, many = (
        write_report(planted(texts=texts).result, None, tmp_path / f"{texts}.html").stat().st_size
        for texts in (20, 400)
    )
    assert many < 1.1 * few


@pytest.mark.slow
def test_twelve_by_twelve_heads_of_512_tokens_stay_small(tmp_path):
    made = planted(12, 12, texts=20, tokens=512, rank=32)
    rng = np.random.default_rng(0)
    keys = np.argsort(rng.random((12, 12, 512, 512), dtype=np.float32), axis=-1)[..., :32]
    sample = made.sample.assign(key=(made.sample["key"].dims, keys.astype("uint16")))
    assert write_report(made.result, sample, tmp_path / "r.html").stat().st_size < 7_000_000


# --- writing ---


def test_a_failed_write_leaves_the_old_page_and_no_rest(made, tmp_path, monkeypatch):
    path = write_report(made.result, None, tmp_path / "r.html")
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(AttnscopeError, match="no space left on device"):
        write_report(made.result, made.sample, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.html"]


def test_the_same_result_gives_the_same_page(made, tmp_path):
    one = write_report(made.result, made.sample, tmp_path / "new" / "1.html")
    two = write_report(made.result, made.sample, str(tmp_path / "2.html"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, path: write_report(m.result, m.sample.isel(head=[0]), path), "1 heads and the result 4"),
        (lambda m, path: write_report(m.result, m.sample.drop_vars("key"), path), "needs key"),
        (lambda m, path: write_report(m.result[["length"]], None, path), "nothing to report"),
        (lambda m, path: write_report(m.result, None, path.parent), "cannot write the report"),
        (lambda m, path: write_report(m.result, None, path.parent / "file" / "r.html"), "cannot write"),
    ],
)
def test_refusals(made, tmp_path, call, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(AttnscopeError, match=message):
        call(made, tmp_path / "r.html")


# --- what is said of tokens ---


def test_the_page_says_what_a_number_under_a_token_means_where_there_is_one(made, tmp_path):
    split = ["猫₁", "猫₂", "猫₃", *made.sample["token"].values[3:]]
    for tokens, says in ((split, True), (list(made.sample["token"].values), False)):
        sample = made.sample.assign_coords(token=("query", np.array(tokens, dtype=object)))
        page = write_report(made.result, sample, tmp_path / "page.html").read_text(encoding="utf-8")
        assert ("猫₁ 猫₂ 猫₃ are the pieces of one" in page) is says
