"""Statistics from some rows of each window: unbiased, with intervals that hold, and exact where all rows are had."""

import json

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.kernels.call import AttentionCall
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.quantities import DEFAULT, OF_ESTIMATES
from attnscope.measure.row_samples import Influences, RowSample
from attnscope.measure.sampling_error import intervals, intervals_note
from attnscope.measure.stored import notes_of
from tests.cli.command import attnscope as run

TEXT = "The tide comes in twice a day, and twice a day it goes out again. " * 20
SHORT = "The tide comes in."
LENGTHS = (400, 300)
ENDS = ("", *OF_ESTIMATES)
NAMES = (*DEFAULT, "learned_sink", "largest_distance")


@pytest.fixture(scope="module")
def call():
    x = torch.randn(3, 2, 2, 400, 8, generator=torch.Generator().manual_seed(3))
    return AttentionCall(1.5 * x[0], x[1, :, :1], x[2, :, :1], 0.5, causal=True)


@pytest.fixture(scope="module")
def marks():
    valid = torch.arange(400) < torch.tensor(LENGTHS)[:, None]
    return Marks(valid, valid, torch.arange(400).eq(0).expand(2, -1))


@pytest.fixture(scope="module")
def whole(call, marks):
    return measure_call(call, NAMES, 5, 399, marks)[1]


@pytest.fixture(scope="module")
def drawn(call, marks):
    """200 draws of 32 rows."""
    samples = (RowSample(32, seed) for seed in range(200))
    draws = [measure_call(call, NAMES, 5, 399, marks, sample=sample)[1] for sample in samples]
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def test_what_the_log_sum_exp_tells_is_exact(drawn, whole):
    for name in ("band_sum", "profile", "outside", "first_token", "special_tokens", "learned_sink"):
        expected = whole[name].expand_as(drawn[name])
        torch.testing.assert_close(drawn[name], expected, atol=1e-5, rtol=1e-5, equal_nan=True)
        assert f"{name}_error" not in drawn
    assert [name for name in whole if name.startswith("equal_")] == [
        name for name in drawn if name.startswith("equal_")
    ]


@pytest.mark.parametrize(
    "name", ["entropy", "max_weight", "gini_simpson", "mean_offset", "bin_sum", "largest_distance"]
)
def test_estimates_have_no_bias_and_correct_errors(name, drawn, whole):
    away = drawn[name] - whole[name]
    spread, said = away.std(0), drawn[f"{name}_error"].square().mean(0).sqrt()
    varies = spread > 1e-6
    # of a ratio of sums there is a bias, of the order of spread / rows
    assert bool((away.mean(0).abs() <= 4.5 * spread / 200**0.5 + 1e-5).all())
    ratio = (said / spread)[varies]
    assert 0.95 < ratio.mean() < 1.05
    assert ratio.min() > 0.75
    assert ratio.max() < 1.25


def bounds_of(drawn, name):
    parts = {f"{name}{end}": (("window", "draw", "head"), drawn[f"{name}{end}"].transpose(0, 1)) for end in ENDS}
    return intervals(xr.Dataset(parts))[name].values


def share_that_holds(bounds, truth):
    return ((bounds[..., 0] <= truth) & (truth <= bounds[..., 1])).mean()


@pytest.mark.parametrize("name", ["entropy", "max_weight", "gini_simpson", "mean_offset", "offset_spread"])
def test_intervals_cover_at_their_nominal_rate(name, drawn, whole):
    bounds = bounds_of(drawn, name)
    assert np.isfinite(bounds).all()
    # 400 draws that depend on each other
    assert 0.91 < share_that_holds(bounds, whole[name].mean(0).numpy()) < 0.985


def test_near_bins_and_those_that_no_row_reaches_are_known(drawn, whole):
    known = drawn["bin_sum_error"].amax((0, 1, 2)) == 0
    ends = (known.shape[0] - 7) // 2  # offsets up to 5 hold -4 to 4 in seven bins, all to the right is empty
    assert known.tolist() == [False] * ends + [True] * (7 + ends)
    expected = whole["bin_sum"].expand_as(drawn["bin_sum"])[..., known]
    torch.testing.assert_close(drawn["bin_sum"][..., known], expected, atol=1e-4, rtol=1e-5)
    assert bool((drawn["bin_sum_effective_rows"][..., known] >= 8).all())


def test_rows_that_seldom_look_far_do_not_break_the_interval():
    """One row in 20 looks far away, the others nearby: what it adds is of rows that may not be drawn."""
    place = torch.arange(600)
    offset = place - place[:, None]
    far = torch.rand(600, generator=torch.Generator().manual_seed(1)) < 0.05
    slope = torch.where(far, 0.004, 2.0)
    x = torch.zeros(1, 1, 600, 8)
    call = AttentionCall(x, x, x, 1.0, causal=True, bias=(offset * slope[:, None])[None, None])
    valid = torch.ones(1, 600, dtype=torch.bool)
    marks = Marks(valid, valid, ~valid)
    names = ["mean_offset", "offset_spread", "profile"]
    truth = measure_call(call, names, 5, 599, marks)[1]
    draws = [measure_call(call, names, 5, 599, marks, sample=RowSample(48, seed))[1] for seed in range(150)]
    drawn = {key: torch.stack([draw[key] for draw in draws]) for key in draws[0]}
    for name in names[:2]:
        assert share_that_holds(bounds_of(drawn, name), truth[name].numpy()) > 0.91


def planted(values):
    """Estimates of means from ``(draw, row)``, as `estimates` leaves them."""
    of_rows = torch.from_numpy((values - values.mean(1, keepdims=True)) / values.shape[1]).T[:, None, :]
    of = Influences(torch.from_numpy(values.mean(1))[None], of_rows, torch.full_like(of_rows, 1 / values.shape[1]))
    variance, freedom = of.variance()
    skewness = of.third_moment() / variance**1.5
    found = (of.estimate, variance.sqrt(), freedom, skewness, of.effective())
    return xr.Dataset({f"x{end}": (("window", "head"), each) for end, each in zip(ENDS, found, strict=True)})


def test_skewed_rows_are_covered_where_the_interval_of_students_t_fails():
    values = np.random.default_rng(0).lognormal(size=(4000, 64))
    results, truth = planted(values), np.exp(0.5)
    told = np.isfinite(intervals(results).x.values[:, 0])
    assert told.mean() > 0.98
    bounds = intervals(results).x.values[told]
    below, above = (bounds[:, 0] > truth).mean(), (bounds[:, 1] < truth).mean()
    assert 0.93 < share_that_holds(bounds, truth) < 0.97
    assert max(below, above) < 0.05
    without = intervals(results.assign(x_skewness=results.x_skewness * 0)).x.values[told]
    assert share_that_holds(without, truth) < 0.925


def test_a_few_rows_with_all_the_weight_have_no_interval():
    values = np.zeros((1, 64))
    values[0, :7] = 1.0
    assert intervals(planted(values)).x.isnull().all()
    values[0, :9] = 1.0
    assert intervals(planted(values)).x.notnull().all()
    nothing = planted(np.zeros((1, 64)))
    assert intervals(nothing).x.isnull().all()
    said = intervals_note(
        nothing.expand_dims("layer").rename(x="entropy", **{f"x{end}": f"entropy{end}" for end in OF_ESTIMATES})
    )
    values[0, :40] = 5000.0 * np.arange(40)
    wide = (
        planted(values)
        .expand_dims("layer")
        .rename(x="mean_offset", **{f"x{end}": f"mean_offset{end}" for end in OF_ESTIMATES})
    )
    assert intervals_note(wide).endswith(": mean_offset 1,400 tokens.")
    assert "No interval, with fewer than 8 effective rows: entropy of 1 heads." in said


def test_of_a_short_window_all_rows_are_measured(call, marks, whole):
    found = measure_call(call, NAMES, 5, 399, marks, sample=RowSample(300))[1]
    for name in ("entropy", "offset_spread", "bin_sum"):
        torch.testing.assert_close(found[name][1], whole[name][1], atol=1e-5, rtol=1e-4)
        assert found[f"{name}_error"][1].abs().max() == 0
        assert found[f"{name}_error"][0].max() > 0


def test_a_scan_notes_that_its_numbers_are_estimates(tmp_path):
    whole = attnscope.scan(texts=[TEXT])
    result = attnscope.scan(texts=[TEXT], rows=64, out=tmp_path / "run", show=[])
    again = attnscope.scan(texts=[TEXT], rows=64, batch_size=1)
    np.testing.assert_allclose(result.entropy, again.entropy, atol=1e-5)  # rows do not depend on batches
    assert result.sampled_rows.values.tolist() == [min(64, length) for length in result.length.values]
    bounds, truth = intervals(result).entropy.values, whole.entropy.mean("window").values
    assert share_that_holds(bounds, truth) > 0.5
    assert (result.entropy.mean("window") != truth).any()
    np.testing.assert_allclose(result.profile, whole.profile, atol=1e-6)
    assert "At most 64 queries of each window were measured, drawn at random" in result.attrs["rows"]
    assert "some numbers are estimates, also those behind labels" in result.attrs["rows"]
    few = attnscope.scan(texts=[TEXT], rows=64, statistics=["band_sum", "entropy"], clusters=2)
    assert "some numbers are estimates. Estimated: entropy. " in few.attrs["rows"]  # kinds are of the band alone
    assert json.loads(result.attrs["signature"])["settings"]["rows"] == 64


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([SHORT, TEXT], " 1 of 2 windows has fewer, all measured. Widest 95% intervals"),
        ([SHORT], "1 of 1 window has at most 64 queries (--rows): all were measured, so nothing is est"),
    ],
)
def test_windows_without_more_queries_are_noted_as_measured_whole(texts, says):
    result = attnscope.scan(texts=texts, rows=64, limit=2)
    assert result.length.values[0] < 64
    assert says in notes_of(result)["rows"]
    assert ("drawn at random" in notes_of(result)["rows"]) == (len(texts) > 1)


def test_the_command_shows_intervals(tmp_path):
    (tmp_path / "tide.txt").write_text(TEXT)
    command = ("scan", "bundled", "tide.txt", "--rows", "64", "--limit", "2", "--figures", "none")
    table = run(*command, "--csv", cwd=tmp_path).stdout.splitlines()
    assert {"entropy_low", "entropy_high"} <= set(table[0].split(","))
    assert not any(end in table[0] for end in OF_ESTIMATES)
    notes = json.loads(run(*command, "--json", cwd=tmp_path).stdout)["notes"]
    assert any("Widest 95% intervals of a head's mean over these windows: entropy 0." in one for one in notes)
    page = next((tmp_path / "attnscope-runs").glob("*/report.html")).read_text()
    lede, details = page.partition("</header>")[0].split('<details id="estimated">')
    assert "some numbers are estimates" in page.partition('id="notes"')[2]
    assert "gini_simpson" in details
    assert "gini_simpson" not in lede


def test_two_scans_are_compared_by_their_statistics_alone():
    first, second = (attnscope.scan(texts=[TEXT], rows=64, seed=seed) for seed in (0, 1))
    compared = attnscope.diff(first, second).statistic.values.tolist()
    assert "entropy" in compared
    assert not [name for name in compared if name.endswith(OF_ESTIMATES)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 17}, r"rows \(--rows\) is 17; expected an even number"),
        ({"rows": 8}, r"rows \(--rows\) is 8; expected a whole number of 16 or more"),
        ({"rows": 64, "pool": 2}, r"rows \(--rows\) are drawn from single windows"),
        ({"rows": 64, "groups": "types"}, "leave out rows"),
        ({"rows": 64, "words": "space"}, "leave out rows"),
        ({"clusters": 4, "statistics": ["profile"]}, "add band_sum"),
    ],
)
def test_what_does_not_go_together_is_rejected(settings, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(MODEL, [TEXT], **settings)
