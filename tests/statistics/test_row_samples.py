"""Statistics from some rows of each window: unbiased, with intervals that hold, and exact where all rows are had."""

import json

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.attention import AttentionCall
from attnscope.bundled import MODEL
from attnscope.statistics import intervals
from attnscope.statistics._catalogue import DEFAULT
from attnscope.statistics._pass import Marks, measure_call
from attnscope.statistics._row_samples import RowSample
from tests.cli.command import attnscope as run

TEXT = "The tide comes in twice a day, and twice a day it goes out again. " * 20
LENGTHS = (600, 450)
ENDS = ("_error", "_freedom")
NAMES = (*DEFAULT, "learned_sink")


@pytest.fixture(scope="module")
def call():
    x = torch.randn(3, 2, 4, 600, 8, generator=torch.Generator().manual_seed(3))
    return AttentionCall(1.5 * x[0], x[1, :, :2], x[2, :, :2], 0.5, causal=True)


@pytest.fixture(scope="module")
def marks():
    valid = torch.arange(600) < torch.tensor(LENGTHS)[:, None]
    return Marks(valid, valid, torch.arange(600).eq(0).expand(2, -1))


@pytest.fixture(scope="module")
def whole(call, marks):
    return measure_call(call, NAMES, 5, 599, marks)[1]


@pytest.fixture(scope="module")
def drawn(call, marks):
    """200 draws of 32 rows."""
    samples = (RowSample(32, seed) for seed in range(200))
    draws = [measure_call(call, NAMES, 5, 599, marks, sample=sample)[1] for sample in samples]
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def test_what_the_log_sum_exp_tells_is_exact(drawn, whole):
    for name in ("band_sum", "profile", "outside", "first_token", "special_tokens", "learned_sink"):
        expected = whole[name].expand_as(drawn[name])
        torch.testing.assert_close(drawn[name], expected, atol=1e-5, rtol=1e-5, equal_nan=True)
        assert f"{name}_error" not in drawn
    assert [name for name in whole if name.startswith("equal_")] == [
        name for name in drawn if name.startswith("equal_")
    ]


@pytest.mark.parametrize("name", ["entropy", "max_weight", "gini_simpson", "mean_offset", "bin_sum"])
def test_estimates_have_no_bias_and_errors_as_large_as_they_say(name, drawn, whole):
    away = drawn[name] - whole[name]
    spread, said = away.std(0), drawn[f"{name}_error"].square().mean(0).sqrt()
    varies = spread > 1e-9
    assert bool((away.mean(0).abs() <= 4.5 * spread / 200**0.5 + 1e-9).all())
    ratio = (said / spread)[varies]
    assert 0.95 < ratio.mean() < 1.05
    assert ratio.min() > 0.75
    assert ratio.max() < 1.25


def test_intervals_hold_as_often_as_they_say(drawn, whole):
    for name in ("entropy", "max_weight", "gini_simpson"):
        parts = {
            f"{name}{end}": (("text", "draw", "head"), drawn[f"{name}{end}"].transpose(0, 1)) for end in ENDS
        }
        of_mean = intervals(xr.Dataset(parts))[name].values
        away = (drawn[name] - whole[name]).mean(1)
        assert 0.91 < (abs(away.numpy()) <= of_mean).mean() < 0.98  # 800 draws that depend on each other


def test_of_a_short_window_all_rows_are_measured(call, marks, whole):
    found = measure_call(call, NAMES, 5, 599, marks, sample=RowSample(450))[1]
    for name in ("entropy", "offset_spread", "bin_sum"):
        torch.testing.assert_close(found[name][1], whole[name][1], atol=1e-5, rtol=1e-4)
        assert found[f"{name}_error"][1].abs().max() == 0
        assert found[f"{name}_error"][0].max() > 0


def test_a_scan_says_that_its_numbers_are_estimates(tmp_path):
    whole = attnscope.scan(texts=[TEXT])
    result = attnscope.scan(texts=[TEXT], rows=64, out=tmp_path / "run", show=[])
    again = attnscope.scan(texts=[TEXT], rows=64, batch_size=1)
    np.testing.assert_allclose(result.entropy, again.entropy, atol=1e-5)  # rows do not depend on batches
    assert result.sampled_rows.values.tolist() == [min(64, length) for length in result.length.values]
    half = intervals(result).entropy
    away = abs(result.entropy.mean("text") - whole.entropy.mean("text"))
    assert float((away <= half).mean()) > 0.5
    assert (away > 0).any()
    np.testing.assert_allclose(result.profile, whole.profile, atol=1e-6)
    assert "64 queries of each window, drawn at random" in result.attrs["rows"]
    assert json.loads(result.attrs["signature"])["settings"]["rows"] == 64


def test_the_command_shows_intervals(tmp_path):
    (tmp_path / "tide.txt").write_text(TEXT)
    command = ("scan", "bundled", "tide.txt", "--rows", "64", "--figures", "none")
    table = run(*command, "--csv", cwd=tmp_path).stdout.splitlines()
    assert "entropy_interval" in table[0].split(",")
    assert "entropy_error" not in table[0]
    notes = json.loads(run(*command, "--json", cwd=tmp_path).stdout)["notes"]["rows"]
    assert "Widest 95% intervals of a head's mean over these windows: entropy ± 0." in notes
    page = next((tmp_path / "attnscope-runs").glob("*/report.html")).read_text()
    assert '"within":' in page
    assert notes[:40] in page


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 17}, r"rows \(--rows\) is 17; expected an even number"),
        ({"rows": 8}, r"rows \(--rows\) is 8; expected a whole number of 16 or more"),
        ({"rows": 64, "pool": 2}, r"rows \(--rows\) are drawn of single windows"),
        ({"rows": 64, "groups": "kinds"}, "leave out rows"),
        ({"rows": 64, "words": "space"}, "leave out rows"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(MODEL, [TEXT], **settings)
