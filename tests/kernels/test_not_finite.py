"""NaN and infinity in every pass: the rows that may look at them say so, and no other row changes by a bit."""

import math
from dataclasses import fields, replace

import pytest
import torch

from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.fused import can_fuse
from attnscope.kernels.reference import attend, causal_mask, padding_mask, window_mask
from tests.kernels.test_measure import draw

N, BAND = 12, 3
NAN, INF = math.nan, math.inf
ENGINES = ["compiled", "plain", "fused"]
COLUMNS = torch.eye(N)[None, :, :2].expand(2, -1, -1)
SPOTS = [(0, 1, 4), (1, 3, 2), (1, 0, 10)]  # text, head, position: in the middle, and twice on padding


def calls():
    q, k, v = (draw(2, 4, N, 8, seed=seed) for seed in range(3))
    plain = AttentionCall(q, k, v, 0.3)
    right = torch.arange(N)[None] < torch.tensor([N, 9])[:, None]
    left = torch.arange(N)[None] >= torch.tensor([0, 4])[:, None]
    square = (2, 1, N, N)
    forbidding = draw(1, 4, N, N).masked_fill(draw(1, 4, N, N, seed=1) > 1, -INF)
    return {
        "no mask": plain,
        "causal": replace(plain, causal=True),
        "padding right": replace(plain, mask=padding_mask(right).expand(square)),
        "padding left, causal": replace(plain, mask=padding_mask(left) & causal_mask(N, N)),
        "sliding window": replace(plain, mask=window_mask(N, N, left=2, right=1)[None, None]),
        "any mask": replace(plain, mask=draw(*square) > 0.5),
        "mask per head, causal": replace(plain, mask=draw(2, 4, N, N) > 0.5, causal=True),
        "bias": replace(plain, bias=forbidding),
        "bias, causal": replace(plain, bias=draw(2, 4, N, N), causal=True),
        "grouped queries": replace(plain, key=k[:, :2], value=v[:, :2], causal=True),
        "soft cap": replace(plain, query=4 * q, softcap=3.0, causal=True),
        "sinks": replace(plain, sinks=draw(4), causal=True),
        "float16": replace(plain, query=q.half(), key=k.half(), value=v.half(), causal=True),
        "bfloat16": replace(plain, query=q.bfloat16(), key=k.bfloat16(), value=v.bfloat16(), causal=True),
        "float64": replace(plain, query=q.double(), key=k.double(), value=v.double(), causal=True),
    }


CALLS = calls()
FUSED = Need(band=BAND, entropy=True, offsets=True, collision=True, columns=COLUMNS)
PASSES = [
    (name, engine)
    for name, call in CALLS.items()
    for engine in ENGINES
    if not (engine == "fused" and can_fuse(call, FUSED)) and (name, engine) != ("float64", "compiled")
]


def measured(call, engine):
    """Output and measures."""
    need = FUSED if engine == "fused" else Need.everything(BAND, COLUMNS)
    output, rows = measure(call, need, engine=engine)
    found = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return output, {name: one for name, one in found.items() if one is not None}


def allowed(call):
    """``(text, head, query, key)``, by what the arguments mean."""
    may = torch.ones(*call.query.shape[:3], call.key.shape[2], dtype=torch.bool)
    if call.causal:
        may &= causal_mask(*may.shape[2:])
    if call.mask is not None:
        may &= call.mask
    if call.bias is not None:
        may &= call.bias != -INF
    return may


def alone(call, text, head, row):
    """Eager attention of one query over the keys that it may look at, and no others."""
    keys = allowed(call)[text, head, row]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    bias = None if call.bias is None else call.bias.expand(2, 4, -1, -1)[text, head, row, None, keys].to(wide)
    return attend(
        call.query[text, head, row, None].to(wide),
        call.key[text, head // call.group, keys].to(wide),
        call.value[text, head // call.group, keys].to(wide),
        scale=call.scale,
        bias=bias,
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks[head].view(1, 1).to(wide),
    )[0][0]


def check(call, clean, reached, engine):
    """Rows that are reached are NaN in all that there is; the others are those of the clean call, and of `alone`."""
    output, rows = measured(call, engine)
    expected, of_clean = measured(clean, engine)
    assert bool(output[reached].isnan().all())
    assert torch.equal(output[~reached], expected[~reached])
    for name, values in rows.items():
        assert bool(values[reached].isnan().all()), name
        if engine == "fused" and name == "entropy":  # of keys about their mean, in which the planted one is missing
            torch.testing.assert_close(values[~reached], of_clean[name][~reached], atol=2e-6, rtol=0)
        else:
            assert torch.equal(values[~reached], of_clean[name][~reached]), name
    close = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(call.query.dtype, 1e-5)
    for place in (~reached & allowed(call).any(-1)).nonzero().tolist()[::7]:
        torch.testing.assert_close(output[*place], alone(call, *place).to(output.dtype), atol=close, rtol=close)


@pytest.mark.parametrize("number", [NAN, -INF])
@pytest.mark.parametrize(("name", "engine"), PASSES)
def test_rows_that_look_at_a_strange_query_or_key_are_nan_and_no_others(name, engine, number):
    clean = CALLS[name]
    query, key = clean.query.clone(), clean.key.clone()
    may = allowed(clean)
    reached = torch.zeros_like(may[..., 0])
    for text, head, position in SPOTS:
        query[text, head, position, 3] = number
        reached[text, head, position] |= may[text, head, position].any()
    check(replace(clean, query=query), clean, reached, engine)
    reached = torch.zeros_like(reached)
    for text, head, position in SPOTS:
        key[text, head // clean.group, position, 5] = number
        first = head // clean.group * clean.group
        heads = slice(first, first + clean.group)
        reached[text, heads] |= may[text, heads, :, position]
    check(replace(clean, key=key), clean, reached, engine)


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize(("name", "engine"), PASSES)
def test_strange_values_reach_the_outputs_that_mix_them_and_change_no_weight(name, engine, number):
    clean = CALLS[name]
    may, value = allowed(clean), clean.value.clone()
    reached = torch.zeros(*may.shape[:3], value.shape[-1], dtype=torch.bool)
    for text, head, position in SPOTS:
        value[text, head // clean.group, position, 5] = number
        first = head // clean.group * clean.group
        heads = slice(first, first + clean.group)
        reached[text, heads, :, 5] |= may[text, heads, :, position]
    call = replace(clean, value=value)
    output, rows = measured(call, engine)
    expected, of_clean = measured(clean, engine)
    assert torch.equal(output.isnan(), reached)
    assert torch.equal(output[~reached], expected[~reached])
    for measure_name, one in rows.items():
        assert torch.equal(one, of_clean[measure_name]), measure_name
    text, head, row = reached.any(-1).nonzero()[0].tolist()
    assert torch.equal(alone(call, text, head, row).isfinite(), ~reached[text, head, row])


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("name", ["bias", "bias, causal"])
def test_rows_that_look_at_a_strange_bias_are_nan(name, engine, number):
    """-inf forbids; NaN and +inf are errors, where the row may look."""
    clean = CALLS[name]
    bias = clean.bias.expand(2, -1, -1, -1).clone()
    reached = torch.zeros_like(allowed(clean)[..., 0])
    for text, head, row, key in ((0, 1, 7, 3), (1, 2, 3, 7), (1, 2, 8, 8)):
        bias[text, head, row, key] = number
        reached[text, head, row] = not clean.causal or key <= row
    call = replace(clean, bias=bias)
    check(call, replace(clean, bias=clean.bias.expand(2, -1, -1, -1)), reached, engine)
    for place in reached.nonzero().tolist():
        assert bool(alone(call, *place).isnan().all())


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_a_bias_of_minus_infinity_forbids_as_a_mask_does(engine):
    clean = CALLS["bias"]
    may = allowed(clean).expand(2, -1, -1, -1).clone()
    may[0, 2, 5] = False
    by_bias = replace(clean, bias=clean.bias.masked_fill(~may, -INF))
    by_mask = replace(clean, bias=clean.bias.masked_fill(clean.bias == -INF, 0.0), mask=may)
    for one, other in zip(measured(by_bias, engine), measured(by_mask, engine), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    assert measured(by_bias, engine)[0][0, 2, 5].tolist() == [0.0] * 8


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_a_strange_sink_reaches_every_row_of_its_head(engine, number):
    clean = CALLS["sinks"]
    sinks = clean.sinks.clone()
    sinks[2] = number
    reached = torch.zeros_like(allowed(clean)[..., 0])
    reached[:, 2] = True
    check(replace(clean, sinks=sinks), clean, reached, engine)


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1)])
@pytest.mark.parametrize(
    ("name", "engine"),
    [one for one in PASSES if one[0] in {"causal", "padding right", "mask per head, causal", "soft cap", "bias"}],
)
def test_scores_that_overflow_are_reported(name, engine, signs):
    """Finite queries and keys whose products are +inf, -inf, and both, of which the sum is NaN."""
    clean = CALLS[name]
    size, scale = 2e18, 100.0
    query, key = clean.query * clean.scale / scale, clean.key.clone()
    query[:, :, 6, :2] = size
    key[:, :, 3, :2] = torch.tensor(signs) * size
    call = replace(clean, query=query, key=key, scale=scale)
    reached = torch.zeros_like(allowed(call)[..., 0])
    reached[:, :, 6] = allowed(call)[:, :, 6, 3]
    assert bool(reached.any())
    assert not bool((scale * query[0, 0, 6] @ key[0, 0, 3]).isfinite())
    output, rows = measured(call, engine)
    for values in (output, *rows.values()):
        assert torch.equal(values.isnan().flatten(3).any(-1) if values.ndim > 3 else values.isnan(), reached)
    for place in (~reached & allowed(call).any(-1)).nonzero().tolist():
        torch.testing.assert_close(output[*place], alone(call, *place), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_that_overflows_everywhere_is_not_taken_for_a_fully_masked_one(engine):
    clean = CALLS["causal"]
    query, key = clean.query.clone(), clean.key.clone()
    query[0, 0, 4], key[0, 0, :5] = 1e30, -1e30
    output, rows = measured(replace(clean, query=query, key=key), engine)
    assert bool(output[0, 0, 4].isnan().all())
    assert math.isnan(rows["mass"][0, 0, 4])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_strange_in_one_tile_is_known_after_the_others(engine):
    n = 1100  # three tiles on either side
    q, k, v = (draw(1, 2, n, 8, seed=seed) for seed in range(3))
    clean = AttentionCall(q, k, v, 0.3, causal=True)
    expected, of_clean = measured_without_columns(clean, engine)
    for side, head in (("key", 0), ("value", 1)):  # apart: each must be seen without the other
        strange = getattr(clean, side).clone()
        strange[0, head, 600] = NAN
        output, rows = measured_without_columns(replace(clean, **{side: strange}), engine)
        lost = output.isnan().all(-1)[0]
        assert bool(lost[head, 600:].all())
        assert lost.sum() == n - 600
        assert torch.equal(output[0][~lost], expected[0][~lost])
        expected_band = of_clean.band.clone()
        if side == "key":
            expected_band[0, 0, 600:] = NAN
        torch.testing.assert_close(rows.band, expected_band, rtol=0, atol=0, equal_nan=True)
    if engine != "fused":
        bias = torch.zeros(1, 1, n, n)
        bias[..., 1050, 10], bias[..., 40, 30] = NAN, INF
        lost = measured_without_columns(replace(clean, bias=bias), engine)[1].entropy.isnan()
        assert lost.nonzero()[:, 1:].tolist() == [[0, 40], [0, 1050], [1, 40], [1, 1050]]


def measured_without_columns(call, engine):
    return measure(call, Need(band=2, entropy=True), engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_scores_near_the_largest_number_are_measured_as_ever(engine):
    """Their sums would overflow, in both directions."""
    clean = CALLS["no mask"]
    call = replace(clean, query=clean.query * 2e18, key=clean.key * 1e18)
    output, rows = measured(call, engine)
    for place in allowed(call).any(-1).nonzero().tolist():
        torch.testing.assert_close(output[*place], alone(call, *place))
    assert bool((rows["mass"] == 1).all())


def test_a_strange_key_is_known_where_values_have_no_width():
    q, k, v = (draw(1, 2, 700, 8, seed=seed) for seed in range(3))
    k[0, 1, 690] = NAN
    for engine in ("plain", "compiled"):
        rows = measure(AttentionCall(q, k, v[..., :0], 0.3), Need(band=2, entropy=True), engine=engine)[1]
        for name in ("log_sum_exp", "mass", "entropy", "band"):
            lost = getattr(rows, name).isnan().flatten(3) if name == "band" else getattr(rows, name).isnan()
            assert bool(lost[0, 1].all())
            assert not bool(lost[0, 0].any())
