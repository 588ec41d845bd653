"""What keys receive, distances and all offsets, held against explicit weights."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.kernels.reference import causal_mask, masked_softmax
from attnscope.measure.quantities import SECOND_PASS, STATISTICS
from attnscope.measure.ranking import top_keys
from attnscope.measure.stored import SAMPLE, notes_of
from attnscope.read.encoded import texts_of, windows_of
from attnscope.store.runs import RunFolder
from tests.results.page.planted_result import scan_page
from tests.tiny_models import tiny_reader

LENGTHS = (130, 90)
OBSERVED = 32
NAMES = [
    name
    for name, one in STATISTICS.items()
    if SECOND_PASS & {*one.needs, *one.needs_of_equal} or name.startswith("within")
]


def share_of(received):
    return received / received.sum(-1, keepdims=True)


@pytest.fixture(scope="module", params=["causal", "both sides", "learned sink"])
def measured(request):
    """Two texts, the second shorter, through one layer of two heads."""
    scores = 3 * torch.randn(2, 2, 130, 130, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    real = torch.arange(130) < torch.tensor(LENGTHS)[:, None]
    mask = (real[:, None, None] & real[:, None, :, None]).expand_as(scores)
    if request.param == "causal":
        mask = mask & causal_mask(130, 130)
    weights = masked_softmax(scores, mask) * (0.6 if request.param == "learned sink" else 1.0)
    found = attnscope.measure_weights(weights[None], lengths=LENGTHS, statistics=NAMES)
    return weights.numpy(), found.isel(layer=0), mask.numpy()


def test_shares_of_the_keys_are_those_of_the_columns(measured):
    weights, found, mask = measured
    even = mask[:, :1] / mask[:, :1].sum(-1, keepdims=True).clip(1)
    for text, length in enumerate(LENGTHS):
        for prefix, first in (("", 0), ("recent_", length - OBSERVED)):
            for equal, matrix in (("", weights), ("equal_", even)):
                share = share_of(matrix[text, :, first:length].sum(1))
                entropy = -(share * np.log(np.where(share > 0, share, 1))).sum(-1)
                of_text = found.isel(window=text)
                top = np.sort(share)[:, ::-1]
                expected = {"top_key": top[:, 0], "top_10_keys": top[:, :10].sum(-1), "effective_keys": np.exp(entropy)}
                for name, value in expected.items():
                    np.testing.assert_allclose(
                        np.atleast_1d(of_text[f"{equal}{prefix}{name}"]), value, rtol=1e-5, err_msg=name
                    )


def test_every_offset_has_its_diagonal_and_distances_their_share(measured):
    weights, found, mask = measured
    even = mask[:, 0] / mask[:, 0].sum(-1, keepdims=True).clip(1)
    away = np.abs(found.every_offset.values)
    for text in range(len(LENGTHS)):
        for offset in (-129, -70, -1, 0, 5, 129):
            expected = np.trace(weights[text], offset, 1, 2)
            np.testing.assert_allclose(found.offset_sum[text].sel(every_offset=offset), expected, atol=1e-6)
            expected = np.trace(even[text], offset)
            np.testing.assert_allclose(found.equal_offset_sum[text].sel(every_offset=offset), expected, atol=1e-6)
        every = found.offset_sum[text]
        near = every.isel(every_offset=away <= 64).sum("every_offset") / every.sum("every_offset")
        np.testing.assert_allclose(found.within_64[text], near, rtol=1e-5)
        apart = np.abs(np.arange(130)[:, None] - np.arange(130))
        for name, matrix in (("attention_distance", weights[text]), ("equal_attention_distance", even[text])):
            expected = (matrix * apart).sum((-2, -1)) / matrix.sum((-2, -1))
            np.testing.assert_allclose(found[name][text], expected, rtol=1e-5)
    np.testing.assert_allclose(found.within_256, 1.0)


def test_an_observation_window_is_a_part_of_the_signature_only_where_it_counts(no_types):
    scan = {"model": "bundled", "texts": ["The tide comes in twice a day."], "band": 2}
    few = attnscope.scan(**scan, statistics="recent_top_key,top_key", observation=3)
    more = attnscope.scan(**scan, statistics="recent_top_key,top_key", observation=4)
    assert few.attrs["signature"] != more.attrs["signature"]
    assert not few.recent_top_key.equals(more.recent_top_key)
    assert few.top_key.equals(more.top_key)
    plain = [attnscope.scan(**scan, statistics="top_key", observation=count).attrs["signature"] for count in (3, 4)]
    assert plain[0] == plain[1]
    with pytest.raises(AttnscopeError, match=r"observation \(--observation\) is 0"):
        attnscope.scan(**scan, observation=0)


@pytest.mark.parametrize(
    ("window", "observation", "message"),
    [
        (16, 16, "Windows have at most 16 tokens and --observation is 16, so recent_top_key"),
        (16, 15, "1 of 3 windows has at most 15 queries (--observation): there recent_top_key"),
        (64, 40, "2 of 2 windows have at most 40 queries"),
        (16, 8, None),
    ],
)
def test_a_window_with_no_more_queries_than_its_observation_window_is_reported(window, observation, message):
    texts = ["The tide comes in twice a day, and twice a day it goes out.", "The tide comes in again."]
    found = attnscope.scan(
        "bundled", texts, window=window, band=2, statistics="recent_top_key,top_key", observation=observation
    )
    told = notes_of(found).get("observation")
    assert message in told if message else told is None
    alike = (found.recent_top_key == found.top_key).all(("layer", "head"))
    np.testing.assert_array_equal(alike, found.length <= observation)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_top_keys_of_the_last_queries_are_those_of_eager_attention(family, tmp_path):
    model, tokenizer = tiny_reader(family)
    texts = ["The tide comes in twice a day, and twice a day it goes out again.", "Out."]
    given = {"tokenizer": tokenizer, "window": 32, "out": tmp_path, "show": []}
    result = attnscope.scan(model, texts, statistics="recent_top_key", observation=5, **given)
    with RunFolder(tmp_path, json.loads(result.attrs["signature"])) as run:
        sample = run.load(SAMPLE)
    page = scan_page(result, sample, tmp_path / "page.html").read_text(encoding="utf-8")
    received = json.loads(re.search(r'id="packed">(.*?)</script>', page).group(1))["received"]
    packed = json.loads(zlib.decompress(base64.b64decode(received)))
    layers, heads = result.sizes["layer"], result.sizes["head"]
    rows = top_keys(sample, [*np.ndindex(layers, heads)])
    windows = [*windows_of(texts_of(texts), tokenizer, length=32)]
    assert len(rows) == len(windows) * layers * heads
    model.set_attn_implementation("eager")
    drawn = 0
    for row in rows:
        window, layer, head = windows[row["window"]], row["layer"], row["head"]
        with torch.no_grad():
            eager = model(torch.tensor([window.ids]), output_attentions=True).attentions[layer][0, head]
        count = min(5, len(window))
        seen = np.tril(np.ones(eager.shape)) if family == "gpt2" else np.ones(eager.shape)
        even = seen / seen.sum(-1, keepdims=True)
        stands_out = False
        for name, first in (("keys", 0), ("recent_keys", len(window) - count)):
            share = eager.double().numpy()[first:].sum(0) / (len(window) - first)
            equal = even[first:].sum(0) / (len(window) - first)
            found = [one["position"] for one in row[name]]
            assert len({*found}) == min(10, len(window))
            np.testing.assert_allclose(
                [one["share"] for one in row[name]], np.sort(share)[::-1][: len(found)], atol=2e-6
            )
            np.testing.assert_allclose([one["share"] for one in row[name]], share[found], atol=2e-6)
            np.testing.assert_allclose([one["equal_share"] for one in row[name]], equal[found], atol=1e-6)
            assert [one["token"] for one in row[name]] == [window.tokens[place] for place in found]
            stands_out |= bool((share > 2 * equal).any())
            on_page = packed["heads"].get(f"{row['window']}.{layer * heads + head}", [None] * 4)
            on_page = on_page[2 if name == "keys" else 3]
            if on_page is not None:
                assert [place for place, *_ in on_page] == found
                np.testing.assert_allclose([one for _, one, _ in on_page], share[found], rtol=5e-3)  # three digits
        assert stands_out == (on_page is not None)  # else there is nothing to see
        drawn += stands_out
        assert row["recent_queries"] == packed["recent"][f"{row['window']}.{layer}"] == count
    assert 0 < drawn < len(rows)


PLACE, LENGTH = 217, 1800


@pytest.fixture(scope="module")
def haystack():
    """A text of one needle, and a model of random heads but for head 1, whose every query asks for the needle."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    needle = 7
    config = GPT2Config(
        vocab_size=64, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        tokens, attention = model.transformer.wte.weight, model.transformer.h[0].attn.c_attn
        model.transformer.wpe.weight.zero_()
        tokens[:, 0] = 0.0
        tokens[needle] = 0.0
        tokens[needle, 0] = 1.0
        attention.bias[16] = 30.0  # the query of head 1
        attention.weight[:, 32 + 16 : 32 + 17] = 0.0
        attention.weight[0, 32 + 16] = 1.0  # its key
    ids = torch.randint(8, 64, (LENGTH,), generator=torch.Generator().manual_seed(1))
    ids[PLACE] = needle
    return model, ids.tolist()


def test_a_needle_is_found_by_what_it_receives_from_far_away(haystack):
    model, ids = haystack
    found = attnscope.received(model, [ids], tokenizer=MODEL, window=LENGTH, layer=0)
    share = found / found.sum("key")
    assert found.argmax("key").values[1] == PLACE
    assert float(share[1, PLACE]) > 0.8
    assert float(share[0, PLACE]) < 0.01
    recent = attnscope.received(
        model, [ids], tokenizer=MODEL, window=LENGTH, layer=0, head=1, observation=20
    )  # at least 1,563 tokens away
    assert int(recent.values.argmax()) == PLACE
    assert float(recent[PLACE]) > 19
    np.testing.assert_allclose(found.sum("key"), LENGTH, rtol=1e-6)


def test_a_scan_names_the_needle_and_tells_it_from_equal_weights(haystack, tmp_path):
    model, ids = haystack
    names = "top_key,effective_keys,within_1024,recent_top_key,band_sum"
    result = attnscope.scan(model, [ids], tokenizer=MODEL, window=LENGTH, statistics=names, out=tmp_path, show=[(0, 1)])
    with RunFolder(tmp_path, json.loads(result.attrs["signature"])) as run:
        (row,) = top_keys(run.load(SAMPLE), [(0, 1)])
    assert row["recent_queries"] == 32
    assert row["recent_keys"][0]["position"] == PLACE
    assert row["recent_keys"][0]["share"] == pytest.approx(float(result.recent_top_key[0, 0, 1]), rel=1e-5)
    assert row["keys"][0]["position"] == PLACE
    assert row["keys"][0]["share"] == pytest.approx(float(result.top_key[0, 0, 1]), rel=1e-5)
    assert row["keys"][0]["share"] > 500 * row["keys"][0]["equal_share"]
    random, planted = (result.isel(window=0, layer=0, head=head) for head in (0, 1))
    assert planted.effective_keys < 5
    assert random.effective_keys > 0.5 * result.equal_effective_keys[0, 0]
    # near are the 1,025 queries from the needle on, and those before it, which cannot see it
    assert float(planted.within_1024) == pytest.approx((PLACE + 1025) / LENGTH, abs=0.005)
    assert float(random.within_1024) == pytest.approx(float(result.equal_within_1024[0, 0]), abs=0.02)


@pytest.mark.parametrize(("family", "size"), [("llama", 2), ("gpt2", 1), ("qwen3", 2), ("bamba", 2)])
def test_a_cache_holds_keys_for_all_query_heads_that_share_them(family, size):
    """Against the model's own eager weights, summed over the query heads of each key-value head."""
    model, tokenizer = tiny_reader(family)
    text = "The tide comes in twice a day, and goes out again."
    weights = attnscope.weights(model, text, tokenizer=tokenizer).values.astype("float64")  # (layer, head, query, key)
    shared = weights.reshape(len(weights), -1, size, *weights.shape[2:]).sum(2)
    names = ["kv_top_key", "kv_top_10_keys", "kv_effective_keys"]
    names += [name.replace("kv_", "kv_recent_") for name in names]
    found = attnscope.scan(model, text, tokenizer=tokenizer, statistics=names, observation=4)
    for last, prefix in ((None, "kv_"), (4, "kv_recent_")):
        received = shared[:, :, -last if last else None :].sum(2)
        shares = np.sort(received / received.sum(-1, keepdims=True))[..., ::-1]
        entropy = -np.where(shares > 0, shares * np.log(np.maximum(shares, 1e-300)), 0).sum(-1)
        expected = {
            "top_key": shares[..., 0],
            "top_10_keys": shares[..., :10].sum(-1),
            "effective_keys": np.exp(entropy),
        }
        for name, of_cache in expected.items():
            of_queries = np.repeat(of_cache, size, axis=1)
            np.testing.assert_allclose(found[prefix + name][0], of_queries, rtol=1e-5, err_msg=prefix + name)
        of_keys = attnscope.received(model, text, tokenizer=tokenizer, observation=last, key_value_heads=True)
        np.testing.assert_allclose(of_keys, received, rtol=1e-5, atol=1e-6)
    one = attnscope.received(model, text, tokenizer=tokenizer, key_value_heads=True, layer=0, head=0)
    np.testing.assert_allclose(one, shared[0, 0].sum(0), rtol=1e-5, atol=1e-6)
    if size > 1:
        with pytest.raises(AttnscopeError, match=r"there is no head 3 in layer \d+: choose from 0 to 1"):
            attnscope.received(model, text, tokenizer=tokenizer, key_value_heads=True, head=3)
