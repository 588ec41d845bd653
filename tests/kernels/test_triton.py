"""The Triton kernel against the definitions in float64: in Triton's interpreter, or on CUDA where there is a GPU."""

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from attnscope import AttnscopeError
from attnscope.kernels import engines, sums
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import choose_engine, measure
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.positions import alibi_slopes, t5_buckets
from attnscope.kernels.reference import causal_mask, padding_mask, window_mask
from attnscope.kernels.triton import can_triton
from tests.kernels.statistics_of_weights import attended, check_largest_keys, first_of_the_largest, oracle, ties
from tests.kernels.test_measure import draw

pytest.importorskip("triton")
pytestmark = pytest.mark.device

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
N = 300 if CUDA else 90  # several tiles on either side, the last not whole
BINS = (9, 17, 33)


def calls():
    q, k, v = (draw(1, 2, N, 16, seed=seed) for seed in range(3))
    plain = AttentionCall(q, k, v, 0.25)
    alone = AttentionCall(q[:, :1], k[:, :1], v[:, :1], 0.25)  # one head takes the interpreter half as long
    two = AttentionCall(*(draw(2, 1, N, 16, seed=seed) for seed in range(3)), 0.25)
    right = torch.arange(N)[None] < torch.tensor([N, N - 40])[:, None]
    left = torch.arange(N)[None] >= torch.tensor([0, 40])[:, None]
    slopes = alibi_slopes(2).float()[:, None, None]
    some = draw(1, 1, N, N) > 0.5
    some[..., 5, :] = False
    forbidding = torch.zeros(1, 1, N, N).masked_fill(~some, torch.finfo(torch.float32).min)
    wide = [draw(1, 1, N, 200, seed=seed) for seed in range(3)]
    return {
        "plain": plain,
        "causal": replace(plain, causal=True),
        "causal, one head": replace(alone, causal=True),
        "padding left, causal": replace(two, mask=padding_mask(left) & causal_mask(N, N)),
        "window per head": replace(
            plain, mask=torch.stack([window_mask(N, N, left=left, right=0) for left in (3, 40)])[None]
        ),
        "random mask, a row without keys": replace(alone, mask=some),
        "random mask, causal": replace(plain, mask=draw(1, 2, N, N) > 0.5, causal=True),
        "any bias": replace(plain, bias=draw(1, 2, N, N), causal=True),
        "bias that forbids": replace(alone, bias=forbidding.masked_fill(~causal_mask(N, N), -math.inf)),
        "ALiBi, a line a head": replace(plain, bias=(slopes * torch.arange(N)).expand(1, 2, N, N), causal=True),
        "T5 by offset": replace(
            plain, bias=OffsetBias(draw(32, 2)[t5_buckets(torch.arange(1 - N, N))].T[None], N), scale=1.0
        ),
        "bias by offset of each text, padding": replace(
            two, mask=padding_mask(right).expand(2, 1, N, N), bias=OffsetBias(draw(2, 1, 4 * N - 2)[..., ::2], N)
        ),
        "bias by offset of all heads, fewer queries, soft cap, random mask": AttentionCall(
            draw(1, 4, 33, 16),
            k,
            v,
            0.25,
            mask=draw(1, 4, 33, N) > 0.5,
            bias=OffsetBias(draw(1, 1, N + 32).half(), 33),
            softcap=3.0,
        ),
        "soft cap": replace(plain, query=4 * q, key=4 * k, softcap=5.0, causal=True),
        "soft cap and bias": replace(plain, softcap=3.0, bias=draw(1, 1, N, N)),
        "sinks": replace(plain, sinks=torch.tensor([3.0, -math.inf]), causal=True),
        "grouped queries": AttentionCall(draw(1, 4, 33, 16), k, v, 0.25),
        "narrow": AttentionCall(q[:, :1, :, :5], k[:, :1, :, :5], v[:, :1, :, :3], 0.4),
        "wide": AttentionCall(*wide, 0.07, causal=True),
        "tokens before heads": AttentionCall(*(draw(1, N, 2, 24, seed=seed).transpose(1, 2) for seed in range(3)), 0.2),
        "every second channel": AttentionCall(q[..., ::2], k[..., ::2], v[..., ::2], 0.3),
        "one token": AttentionCall(q[:, :, :1], k[:, :, :1], v[:, :, :1], 0.25),
        "keys far beyond, whose bins stay open": AttentionCall(
            2 * q[:, :1, :20], draw(1, 1, 600, 16), draw(1, 1, 600, 16, seed=1), 0.25
        ),
        "more queries than keys": AttentionCall(q, k[:, :, :20], v[:, :, :20], 0.25),
        "large scores": AttentionCall(40 * q[:, :1], q[:, :1], v[:, :1], 1.0),
        "float16": AttentionCall(q.half(), k.half(), v.half(), 0.25, causal=True),
        "bfloat16": AttentionCall(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.25, sinks=draw(2)),
    }


CALLS = calls()
#: Cases within others, which only a GPU checks: the interpreter takes seconds for each.
WITHIN = {
    "plain",
    "causal, one head",
    "soft cap",
    "soft cap and bias",
    "grouped queries",
    "every second channel",
    "float16",
}
WITHIN |= {"ALiBi, a line a head", "T5 by offset", "random mask, causal"}
# float32 sums against float64: a few units in the last place of scores, or of offsets and their squares
CLOSE = {
    "mass": 1e-6,
    "entropy": 3e-6,
    "mean_offset": 1e-4 if CUDA else 2e-5,
    "offset_variance": 1e-2 if CUDA else 1e-3,
    "largest": 2e-6,
    "collision": 2e-6,
    "band": 2e-6,
    "bins": 2e-6,
}


def there(call):
    """The call on the device of these tests."""
    names = ("query", "key", "value", "mask", "bias", "sinks")
    sides = {name: getattr(call, name) for name in names}
    return replace(call, **{name: side.to(DEVICE) for name, side in sides.items() if side is not None})


def check(call, need, band=10):
    output, rows = measure(there(call), need, engine="triton")
    expected_output, expected, weights = oracle(call, band, need.bins)
    rough = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 5e-6}[call.query.dtype]
    sharper = max(1.0, float((call.scale * call.query.double() @ call.key.double()[:, :1].mT).abs().max()) / 16)
    torch.testing.assert_close(output.cpu().double(), expected_output, atol=rough * sharper, rtol=rough * sharper)
    assert output.dtype == call.query.dtype
    sharp = 1e-5 if call.query.dtype == torch.float32 else 3e-5
    for name, value in expected.items():
        found = getattr(rows, name)
        if found is not None:
            assert found.dtype == (torch.float32 if name in {"band", "bins"} else torch.float64)
            close = CLOSE[name] * sharper  # scores are rounded to a part of the largest
            torch.testing.assert_close(found.cpu().double(), value, atol=close, rtol=sharp * sharper, msg=name)
    if need.largest_key:
        check_largest_keys(rows.largest_key.cpu(), weights, 1e-5 * sharper)
    if need.columns is not None:
        wanted = weights @ need.columns.cpu().double()[:, None]
        torch.testing.assert_close(rows.columns.cpu().double(), wanted, atol=1e-5 * sharper, rtol=1e-5)
    return rows


@pytest.mark.parametrize("name", CALLS if CUDA else [name for name in CALLS if name not in WITHIN])
def test_every_measure_equals_its_definition(name):
    call = CALLS[name]
    columns = draw(len(call.query), call.key.shape[2], 2).to(DEVICE)
    rows = check(call, Need.everything(10, columns, BINS))
    plain = measure(call, Need(), engine="plain")[1]
    torch.testing.assert_close(rows.log_sum_exp.cpu(), plain.log_sum_exp, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["causal, one head", "padding left, causal", "grouped queries"])
def test_keys_receive_what_the_exchanged_call_says(name, monkeypatch):
    call = CALLS[name]
    level = measure(there(call), Need(), engine="triton")[1].log_sum_exp
    monkeypatch.setattr(sums, "_can_exchange", lambda _: True)
    monkeypatch.setattr(sums, "each_tile", None)
    found = sums.column_sums(there(call), level).cpu()
    torch.testing.assert_close(found, attended(call)[1].sum(2), rtol=5e-6, atol=1e-6)


NEEDS = {
    "nothing": Need(),
    "the diagonal": Need(band=0),
    "a band beyond the text": Need(band=N + 2),
    "collision": Need(collision=True),
    "largest key": Need(largest_key=True),
    "variance": Need(variance=True),
    "many bins": Need(bins=(1, 2, 3, 5, 9, 17, 33, 65, 129, 257)),
    "one bin a side": Need(bins=(12,)),
    "five columns": Need(columns=draw(1, N, 5)),
    "more columns than a launch takes": Need(columns=draw(1, N, 70), band=3),
}


@pytest.mark.parametrize("name", NEEDS)
def test_any_part_can_be_requested_alone(name):
    need = NEEDS[name]
    if need.columns is not None:
        need = replace(need, columns=need.columns.to(DEVICE))
    check(CALLS["causal, one head"], need, band=need.band or 0)


TIES = ties(N, N + 33)


@pytest.mark.parametrize("name", TIES if CUDA else ["causal", "random mask", "a bias of whole numbers"])
def test_of_equal_largest_weights_the_first_key_is_named(name):
    """Tiles that all rows see whole come last: a tie must not go to the one that came first."""
    rows = measure(there(TIES[name]), Need(largest_key=True), engine="triton")[1]
    assert torch.equal(rows.largest_key.cpu(), first_of_the_largest(TIES[name]))


@cache  # for all numbers
def clean(name):
    """A call whose queries have one sign where keys are strange, and what is measured of it."""
    query = CALLS[name].query.clone()
    query[..., 3].abs_()
    call = replace(CALLS[name], query=query)
    return call, measure(there(call), NEED, engine="triton")


NEED = Need(entropy=True, band=2)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize(
    ("name", "number"), [("causal", math.nan), ("soft cap", math.inf), ("random mask, causal", -math.inf)]
)
def test_rows_that_look_at_a_strange_key_are_nan_and_no_others(name, number):
    """-inf leaves a weight of 0: the running sum of the entropy shows it, or the norm of the keys."""
    call, (expected, of_clean) = clean(name)
    key = call.key.clone()
    key[0, 1, 7, 3] = number  # and no score is of the other sign
    may = causal_mask(N, N) if call.mask is None else causal_mask(N, N) & call.mask[0, 1]
    reached = torch.stack([torch.zeros(N, dtype=torch.bool), may[:, 7]])[None]
    output, rows = measure(there(replace(call, key=key)), NEED, engine="triton")
    for one, other in ((output, expected), (rows.entropy, of_clean.entropy), (rows.band, of_clean.band)):
        assert bool(one[reached.to(DEVICE)].isnan().all())
        assert torch.equal(one[~reached.to(DEVICE)], other[~reached.to(DEVICE)])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_strange_bias_or_sink_reaches_the_rows_that_look_at_it():
    bias = CALLS["any bias"].bias.clone()
    bias[0, 1, 40, 8] = math.nan
    call = there(replace(CALLS["any bias"], bias=bias))
    lost = measure(call, Need(entropy=True), engine="triton")[1].entropy.isnan()
    assert lost.nonzero().tolist() == [[0, 1, 40]]
    call = there(replace(CALLS["sinks"], sinks=torch.tensor([1.0, math.inf])))
    assert measure(call, Need(), engine="triton")[1].mass.isnan().all(-1).tolist() == [[False, True]]


def test_a_narrow_head_far_from_the_first_key_keeps_its_digits():
    """Weight 0.02 on the key before: variance 0.02 x 0.98, at the end of a long text."""
    n, queries = 4096 if CUDA else 1024, 8
    bias = torch.full((1, 1, queries, n), -40.0)
    at = torch.arange(n - queries, n)
    bias[0, 0, torch.arange(queries), at - 1] = 0.0
    bias[0, 0, torch.arange(queries), at] = math.log(0.02 / 0.98)
    nothing = torch.zeros(1, 1, n, 1)
    call = there(AttentionCall(nothing[:, :, :queries], nothing, nothing, 1.0, bias=bias))
    rows = measure(call, Need(variance=True), engine="triton")[1]
    expected = torch.full((queries,), 0.02 * 0.98).double()
    torch.testing.assert_close(rows.offset_variance[0, 0].cpu(), expected, atol=1e-4, rtol=0)
    offset = at.double() - 0.98 - torch.arange(queries)
    torch.testing.assert_close(rows.mean_offset[0, 0].cpu(), offset, atol=1e-5, rtol=0)


def test_no_entropy_is_above_that_of_uniform_attention():
    """Of weights that are almost equal, rounding would put some above."""
    call = replace(CALLS["causal"], query=1e-5 * CALLS["causal"].query)
    rows = measure(there(call), Need(entropy=True), engine="triton")[1]
    most = torch.arange(1, N + 1, device=DEVICE).double().log()
    assert bool((rows.entropy <= most).all())
    torch.testing.assert_close(rows.entropy, most.expand_as(rows.entropy), atol=1e-6, rtol=0)


def test_what_the_kernel_cannot_do_it_says(no_types):
    call = there(CALLS["plain"])
    x = call.query
    cannot = {
        "not in float64": AttentionCall(x.double(), x.double(), x.double(), 1.0),
        "of one type": AttentionCall(x, x, x.bfloat16(), 1.0),
        "differ in width": AttentionCall(x, x[..., :8], x, 1.0),
        "1 to 256": AttentionCall(x, x, x.repeat(1, 1, 1, 17), 1.0),
        "0 and 16 wide": AttentionCall(x[..., :0], x[..., :0], x, 1.0),
        "not above 0": AttentionCall(x, x, x, -1.0),
    }
    for reason, one in cannot.items():
        with pytest.raises(AttnscopeError, match=f"'triton' cannot measure this: .*{reason}"):
            measure(one, Need(), engine="triton")
    assert "32 bins" in (can_triton(call, Need(bins=tuple(range(1, 33)))) or "")
    assert can_triton(call, Need.everything(10, bins=BINS)) is None
    assert choose_engine(call, Need()) == ("triton" if CUDA else "compiled")


def test_a_kernel_that_fails_or_disagrees_is_not_used(monkeypatch, caplog):
    """A first call compares it with PyTorch; what it says of it is said once."""
    call, need = there(CALLS["sinks"]), Need(entropy=True, largest_key=True, columns=torch.ones(1, N, 1, device=DEVICE))
    expected = measure(call, need, engine="plain")[1].entropy
    monkeypatch.setattr(engines, "choose_engine", lambda *_: "triton")
    kernel = engines._ENGINES["triton"]

    def fails(call, need):
        raise RuntimeError("no such instruction")

    def is_off(call, need):
        output, rows = kernel(call, need)
        return output, replace(rows, entropy=rows.entropy + 0.1)

    for engine, said in ((kernel, None), (is_off, "not what PyTorch measures"), (fails, "no such instruction")):
        monkeypatch.setattr(engines, "_AGREES", {})
        monkeypatch.setitem(engines._ENGINES, "triton", engine)
        caplog.clear()
        for _ in range(2):
            torch.testing.assert_close(measure(call, need)[1].entropy, expected, atol=1e-5, rtol=1e-5)
        assert [said in record.message for record in caplog.records] == ([] if said is None else [True])


def test_without_the_interpreter_the_cpu_is_rejected(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "needs CUDA" in (can_triton(CALLS["plain"], Need()) or "")


@pytest.mark.slow
def test_it_compiles_for_a_gpu_that_is_not_here(tmp_path):
    """The interpreter forgives what the compiler does not; a block takes no more shared memory than a Hopper has."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiled_triton", "90", "--only", "everything at once"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shared = int(re.search(r"(\d+) shared", done.stdout)[1])
    assert shared <= 227 * 1024


def test_the_shortest_path_through_a_loop_leaves_out_a_branch():
    from tests.kernels.compiled_triton import Instruction, shortest_path

    loop = [Instruction(16 * at, "FFMA", None, may_go_on=True) for at in range(6)]
    loop[1] = Instruction(16, "BRA", 64, may_go_on=True)  # may pass over two
    loop[5] = Instruction(80, "BRA", 0, may_go_on=False)
    assert shortest_path(loop) == 4
    loop[1] = Instruction(16, "BRA", 160, may_go_on=True)  # leaves the loop
    assert shortest_path(loop) == 6
