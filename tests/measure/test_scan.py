"""`scan` end to end: planted heads, real models, and what a result says of itself."""

import json

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, TEXT
from attnscope.measure.quantities import DEFAULT, STRONGEST
from attnscope.measure.ranking import rank_heads
from tests.planted_models import FREQUENCIES, LENGTH, circulant_profile, wave_bert
from tests.tiny_models import tiny


def test_planted_heads_come_out_exactly_and_get_their_names(tokenizer):
    """tr_t = (T - |t|) a(t) with a known a (mechanism C9), the same in every text."""
    shifts = (-1, 1, -3, 0)
    planted = attnscope.scan(wave_bert(shifts), [TEXT], tokenizer=tokenizer, window=LENGTH, limit=5, device="cpu")
    offsets = planted.offset.values
    for head, shift in enumerate(shifts):
        whole = circulant_profile(FREQUENCIES[head], 3.0, shift)
        known = whole[offsets % LENGTH]
        own = planted.isel(layer=0, head=head)
        np.testing.assert_allclose(own.profile.values, np.tile(known, (5, 1)), rtol=2e-4, atol=1e-7)
        np.testing.assert_allclose(own.band_sum.values[0], known * (LENGTH - np.abs(offsets)), rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(own.entropy, -(whole * np.log(whole)).sum(), rtol=1e-4)
        np.testing.assert_allclose(own.max_weight, whole.max(), rtol=1e-4)
        np.testing.assert_allclose(own.gini_simpson, 1 - (whole**2).sum(), rtol=1e-4)
    best = planted.label_share.argmax("cluster").values[0]
    assert planted.cluster.values[best].tolist() == ["previous", "next", "offset -3", "self"]
    assert (planted.majority_share.values == 1).all()
    top = rank_heads(planted)["positional"]
    assert {(row["head"], row["offset"]) for row in top[:3]} == {(0, -1), (1, 1), (2, -3)}


def test_an_equal_head_is_uniform(tokenizer):
    """W_A = 0: weights 1/T, tr_t = (T - |t|) / T (mechanism C3)."""
    result = attnscope.scan(
        wave_bert((0, 0, 0, 0), weights=(0.0,) * 4), [TEXT], tokenizer=tokenizer, window=LENGTH, limit=2
    )
    offsets = np.abs(result.offset.values)
    np.testing.assert_allclose(
        result.band_sum.values, np.broadcast_to((LENGTH - offsets) / LENGTH, (2, 1, 4, 21)), rtol=1e-5
    )
    np.testing.assert_allclose(result.entropy.values, np.log(LENGTH), rtol=1e-6)
    np.testing.assert_allclose(result.special_tokens.values, 2 / LENGTH, rtol=1e-5)
    np.testing.assert_allclose(result.first_token.values, 1 / LENGTH, rtol=1e-5)


def test_a_result_records_what_it_depends_on():
    first = attnscope.scan(texts=["The tide comes in."])
    signature = json.loads(first.attrs["signature"])
    assert signature["model"]["name"] == "small-mlm"
    assert len(signature["model"]["sha256"]) == len(signature["corpus"]["sha256"]) == 64
    assert signature["settings"]["window"] == 128
    assert "torch" in signature["versions"]
    again = attnscope.scan(texts=["The tide comes in."])
    assert again.attrs["signature"] == first.attrs["signature"]
    assert (again.entropy.values == first.entropy.values).all()
    other = attnscope.scan(texts=["The tide goes out."])
    assert other.attrs["signature"] != first.attrs["signature"]


def test_named_statistics_are_measured_alone_or_beside_the_default_ones():
    def scan(statistics=None):
        return attnscope.scan(texts=["The tide comes in."], statistics=statistics)

    alone = scan(["entropy", "max_weight"])
    assert set(alone.data_vars) == {"entropy", "equal_entropy", "max_weight", "length"}
    assert scan("entropy,max_weight").equals(alone)
    usual, more = scan(), scan("default,top_key")
    assert set(more.data_vars) - set(usual.data_vars) == {"top_key", "equal_top_key"}
    assert more.drop_vars(["top_key", "equal_top_key"]).equals(usual)
    assert json.loads(more.attrs["signature"])["settings"]["statistics"] == [*DEFAULT, "top_key", STRONGEST]
    assert scan(["top_key", "default"]).attrs["signature"] == more.attrs["signature"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"statistics": ["entropie"]},
            "no statistic 'entropie': the nearest is entropy. To list all: attnscope scan --stat",
        ),
        ({"window": 129}, "does not fit small-mlm: its position table has 128 rows"),
        ({"window": 2}, "is 2; expected 3 or more, as the tokenizer adds 2 special tokens"),
        ({"band": 0}, r"band \(--band\) is 0"),
        ({"clusters": 1}, "clusters .* is 1"),
        ({"batch_size": 0}, "--batch-size.* is 0"),
        ({"limit": 0}, "limit .* is 0"),
        ({"band": 128}, "in windows of 128 tokens the largest offset is 127"),
        ({"seed": 2**32}, "seed .* is 4294967296"),
        ({"stride": 1000}, "stride 1000"),
        ({"texts": []}, "found no text"),
        ({"statistics": []}, "found no name of a statistic"),
        ({"model": tiny("bert"), "tokenizer": MODEL, "window": 32}, "Use the tokenizer of this model"),
        ({"out": __file__}, "is a file; expected a folder for the run: name another"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(**{"texts": ["The tide comes in."], **options})


def test_a_model_is_prepared_once_for_all_batches(monkeypatch):
    prepared = []
    model = tiny("bert")
    set_implementation = type(model).set_attn_implementation

    def counting(self, name):
        prepared.append(name)
        return set_implementation(self, name)

    monkeypatch.setattr(type(model), "set_attn_implementation", counting)
    counts = []
    for batches in (2, 2, 6):  # the first verifies the model too
        prepared.clear()
        attnscope.scan(model, [[2, 3, 4, 5]] * batches, batch_size=1, show=False)
        counts.append(prepared.count("attnscope"))
    assert counts[0] > counts[1] == counts[2] == 1
