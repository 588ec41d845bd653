"""Every way of measuring, held against the definition written out in float64."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from attnscope import AttnscopeError
from attnscope.kernels.by_head import heads_of_tiles
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import choose_engine, measure
from attnscope.kernels.fused import can_fuse
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.reference import attend, causal_mask, padding_mask, window_mask
from tests.kernels.statistics_of_weights import attended, check_largest_keys, first_of_the_largest, oracle, ties

LENGTH = 530  # more than one tile on either side


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def calls(length, heads):
    q, k, v = (draw(2, heads, length, 16, seed=seed) for seed in range(3))
    right = torch.arange(length)[None] < torch.tensor([length, length // 2])[:, None]
    left = torch.arange(length)[None] >= torch.tensor([0, length // 2])[:, None]
    square = (2, 1, length, length)
    return {
        "plain": AttentionCall(q, k, v, 0.25),
        "causal": AttentionCall(q, k, v, 0.25, causal=True),
        "padding": AttentionCall(q, k, v, 0.25, mask=padding_mask(right).expand(square)),
        "left padding, causal": AttentionCall(q, k, v, 0.25, mask=padding_mask(left) & causal_mask(length, length)),
        "window": AttentionCall(q, k, v, 0.25, mask=window_mask(length, length, left=20, right=20)[None, None]),
        "window per head": AttentionCall(
            q,
            k,
            v,
            0.25,
            mask=torch.stack(
                [window_mask(length, length, left=left, right=0) for left in (3, 20, 300, None, 0, 1)[:heads]]
            )[None],
        ),
        "random mask": AttentionCall(q, k, v, 0.25, mask=draw(*square) > 0.5),
        "random mask, causal": AttentionCall(q, k, v, 0.25, mask=draw(*square) > 0.5, causal=True),
        "mask per head": AttentionCall(q, k, v, 0.25, mask=draw(2, heads, length, length) > 0.5),
        "bias": AttentionCall(q, k, v, 0.25, bias=draw(1, heads, length, length)),
        "bias by offset": AttentionCall(
            q, k, v, 0.25, bias=OffsetBias(draw(1, heads, 2 * length - 1), length), causal=True
        ),
        "bias by offset of each text, random mask": AttentionCall(
            q,
            k[:, :2],
            v[:, :2],
            0.25,
            mask=draw(*square) > 0.5,
            bias=OffsetBias(draw(2, 1, 2 * length - 1), length),
            softcap=3.0,
        ),
        "bias by offset, fewer queries": AttentionCall(
            q[:, :, :33], k, v, 0.25, bias=OffsetBias(draw(1, heads, length + 32), 33), sinks=draw(heads)
        ),
        "soft cap": AttentionCall(4 * q, 4 * k, v, 0.25, softcap=5.0, causal=True),
        "sinks": AttentionCall(q, k, v, 0.25, sinks=3 * draw(heads), causal=True),
        "grouped queries": AttentionCall(q, k[:, :2], v[:, :2], 0.25, causal=True),
        "cross, narrow values": AttentionCall(q[:, :, :33], k, v[..., :7], 0.25),
        "one token": AttentionCall(q[:, :, :1], k[:, :, :1], v[:, :, :1], 0.25),
        "bfloat16": AttentionCall(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.25),
    }


CALLS = calls(LENGTH, 4)
SHORT = calls(250, 6)  # four heads make a tile of the compiled pass, and then two
SHORTEST = calls(60, 6)  # all heads of both texts make a tile
# float32 against float64: a few units in the last place of the scores (|s| <= 30) or of the offsets (<= 530)
CLOSE = {
    "mass": 1e-6,
    "entropy": 2e-6,
    "mean_offset": 5e-4,
    "offset_variance": 5e-2,
    "largest": 1e-6,
    "collision": 1e-6,
    "band": 1e-6,
    "bins": 2e-6,
}
BINS = (9, 17, 33, 65, 129)


@lru_cache(maxsize=1)  # for the engines, which follow each other
def defined(name):
    return oracle(CALLS[name], 10, BINS)


@pytest.mark.parametrize("engine", ["compiled", "plain", "fused"])
@pytest.mark.parametrize("name", CALLS)
def test_every_measure_equals_its_definition(name, engine):
    check_measures(CALLS[name], engine, lambda: defined(name))


@pytest.mark.parametrize("name", SHORT)
def test_several_heads_in_a_tile_equal_their_definitions_too(name):
    call = SHORT[name]
    check_measures(call, "compiled")
    if call.query.shape[2] == 250:
        assert [tile.heads.stop for tile in heads_of_tiles(call)] == [4, 6] * 2


@pytest.mark.parametrize("name", SHORTEST)
def test_several_texts_in_a_tile_equal_their_definitions_too(name):
    check_measures(SHORTEST[name], "compiled")


def test_a_last_tile_of_one_head_equals_its_definitions_too():
    query, key, value = (draw(2, 5, 250, 8) for _ in range(3))
    for causal in (False, True):
        call = AttentionCall(query, key, value, scale=0.3, causal=causal)
        assert [tile.heads.stop for tile in heads_of_tiles(call)] == [4, 5] * 2
        check_measures(call, "compiled")


def check_measures(call, engine, expected_of=None):
    columns = draw(2, call.key.shape[2], 2)
    need = Need.everything(10, columns, BINS)
    if engine == "fused":
        need = Need(band=10, entropy=True, offsets=True, collision=True, columns=columns)
        if (reason := can_fuse(call, need)) is not None:
            with pytest.raises(AttnscopeError, match=reason[:20]):
                measure(call, need, engine=engine)
            return
    output, rows = measure(call, need, engine=engine)
    expected_output, expected, weights = expected_of() if expected_of else oracle(call, 10, BINS)
    tolerance = 1e-2 if call.query.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(output.double(), expected_output, atol=tolerance, rtol=tolerance)
    for measured, value in expected.items():
        if getattr(rows, measured) is not None:
            torch.testing.assert_close(
                getattr(rows, measured).double(), value, atol=CLOSE[measured], rtol=1e-5, msg=measured
            )
    if engine != "fused":
        check_largest_keys(rows.largest_key, weights, 1e-5)
    wanted = weights @ columns.double()[:, None]
    torch.testing.assert_close(rows.columns, wanted, atol=5e-6, rtol=1e-5)
    assert {field for field in expected if getattr(rows, field) is None} <= {"largest", "offset_variance", "bins"}


TIES = ties(LENGTH, 1100)
TIES |= {
    "equal scores, random mask": replace(TIES["random mask"], query=0 * TIES["random mask"].query),
    "some queries": TIES["causal"].take(torch.tensor([[3, 520, 529]])),
}


@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("name", TIES)
def test_of_equal_largest_weights_the_first_key_is_named(name, engine):
    rows = measure(TIES[name], Need(largest_key=True), engine=engine)[1]
    assert torch.equal(rows.largest_key, first_of_the_largest(TIES[name]))


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_the_largest_key_is_found_beyond_a_learned_sink_and_known_of_no_nan(engine):
    clean = CALLS["sinks"]
    expected = measure(replace(clean, sinks=None), Need(largest_key=True), engine=engine)[1]
    found = measure(clean, Need(largest_key=True), engine=engine)[1]
    assert torch.equal(found.largest_key, expected.largest_key)
    key = clean.key.clone()
    key[0, 1, 9, 3] = math.nan
    found = measure(replace(clean, key=key), Need(largest_key=True), engine=engine)[1]
    assert found.largest_key[0, 1].isnan().tolist() == [False] * 9 + [True] * (LENGTH - 9)
    assert torch.equal(found.largest_key[1], expected.largest_key[1])


@pytest.mark.parametrize("engine", ["compiled", "plain", "fused"])
def test_rows_without_a_key_are_zero(engine):
    q = draw(1, 2, 5, 8)
    mask = torch.ones(1, 2, 5, 5, dtype=torch.bool)
    mask[0, 1, 2] = mask[0, :, 3] = False  # for one head, and for both
    call = AttentionCall(q, q, q, 1.0, mask=mask)
    output, rows = measure(call, Need(band=1, entropy=True, offsets=True), engine=engine)
    empty = ~mask.any(-1)
    assert torch.equal(rows.log_sum_exp == -math.inf, empty)
    assert torch.equal(rows.mass, (~empty).double())
    for value in (output, rows.entropy, rows.mean_offset, rows.band):
        assert value[empty].abs().max() == 0
        assert bool(value.isfinite().all())


@pytest.mark.parametrize("engine", ["compiled", "plain", "fused"])
def test_scores_beyond_float32_exp_do_not_overflow(engine):
    """exp overflows above 88; the running maximum must not let it."""
    q = 40 * draw(1, 1, 600, 8)
    call = AttentionCall(q, q, q, 1.0)
    output, rows = measure(call, Need(entropy=True), engine=engine)
    assert float((q @ q.mT).max()) > 1e4
    torch.testing.assert_close(output.double(), attended(call)[0], atol=1e-2, rtol=1e-3)
    assert bool(torch.isfinite(rows.entropy).all())


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_narrow_heads_keep_their_variance_far_from_zero(engine):
    """Second moments from j^2 come out as -32 here (mechanism J19); centred ones as 0.02."""
    n, variance = 16_384, 0.02
    position = torch.arange(n, dtype=torch.float32)
    # the query asks for its own key and, with weight p, for the one before: variance p (1 - p)
    p = (1 - math.sqrt(1 - 4 * variance)) / 2
    angle = 2 * math.pi * position / n
    turns = torch.stack([angle.cos(), angle.sin()], -1)
    sharp = 4e6
    shift = math.log(p / (1 - p)) / sharp  # tilt between the two nearest keys
    asked = angle - math.pi / n
    q = torch.stack([asked.cos() - shift * asked.sin(), asked.sin() + shift * asked.cos()], -1)
    call = AttentionCall(
        (sharp * q)[None, None, -64:].double(), turns[None, None].double(), turns[None, None].double(), 1.0
    )
    expected = oracle(call, 1)[1]
    if engine == "compiled":  # its arithmetic is float32: give it scores it can hold, through a bias
        weights = attended(call)[1]
        call = AttentionCall(
            torch.zeros(1, 1, 64, 2),
            torch.zeros(1, 1, n, 2),
            turns[None, None],
            1.0,
            bias=weights.clamp_min(1e-30).log().float(),
        )
    rows = measure(call, Need.everything(1), engine=engine)[1]
    torch.testing.assert_close(rows.offset_variance, expected["offset_variance"], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_nearly_uniform_weights_have_no_more_entropy_than_uniform_ones(engine):
    """Where float32 sums alone would give 3e-7 more."""
    clean = CALLS["causal"]
    call = replace(clean, query=clean.query * 1e-6)
    seen = torch.arange(1, LENGTH + 1).double().log()
    assert bool((measure(call, Need(entropy=True), engine=engine)[1].entropy <= seen + 1e-12).all())


def test_the_engine_is_chosen_by_what_it_can_do():
    q = draw(1, 1, 4, 8)
    for each in (q, q.bfloat16()):
        assert choose_engine(AttentionCall(each, each, each, 1.0), Need()) == "compiled"
    assert choose_engine(AttentionCall(q.double(), q.double(), q.double(), 1.0), Need()) == "plain"
    with pytest.raises(AttnscopeError, match="float32 on the CPU"):
        measure(AttentionCall(q.double(), q.double(), q.double(), 1.0), Need(), engine="compiled")


def test_heads_must_share_keys_evenly():
    with pytest.raises(AttnscopeError, match="4 query heads cannot share 3"):
        AttentionCall(draw(1, 4, 5, 8), draw(1, 3, 5, 8), draw(1, 3, 5, 8), 1.0)


def test_columns_of_any_number_are_packed_into_passes_of_the_kernels_width():
    call = CALLS["plain"]
    columns = draw(2, LENGTH, 40)
    rows = measure(call, Need(columns=columns, entropy=True), engine="fused")[1]
    expected = attended(call)[1] @ columns.double()[:, None]
    torch.testing.assert_close(rows.columns, expected, atol=5e-6, rtol=1e-5)


class TestTheReference:
    """attend() against PyTorch's own, and the identities of attention."""

    def test_it_equals_pytorch(self):
        q, k, v = draw(2, 3, 9, 8), draw(2, 3, 11, 8, seed=1), draw(2, 3, 11, 5, seed=2)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(attend(q, k, v)[0], expected)

    def test_wrong_shapes_are_named(self):
        with pytest.raises(AttnscopeError, match="8 wide and key 7"):
            attend(draw(1, 3, 8), draw(1, 3, 7), draw(1, 3, 7))
        with pytest.raises(AttnscopeError, match="3 keys and 4 values"):
            attend(draw(1, 3, 8), draw(1, 3, 8), draw(1, 4, 8))


@pytest.mark.parametrize("dtype", [torch.long, torch.float32])
def test_a_mask_that_is_not_of_booleans_is_rejected(dtype):
    x = torch.zeros(3, 2)
    with pytest.raises(AttnscopeError, match=r"mask holds \w+: expected booleans.*bias=mask"):
        attend(x, x, x, mask=torch.ones(3, 3).tril().to(dtype))
