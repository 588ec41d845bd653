"""A scan that ends when its intervals are narrow enough, at the same text however often it was stopped."""

import re

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import TEXT
from attnscope.measure.reader import widest_interval
from attnscope.store import run as _run

GIVEN = {"window": 16, "batch_size": 4, "device": "cpu"}


def of_shares(values, documents):
    return xr.Dataset(
        {"outside": (("window", "layer", "head"), values, {"units": "share"})}, {"source": ("window", documents)}
    )


def test_intervals_cover_the_mean_at_their_nominal_rate():
    """Documents of 1 to 6 windows that are alike: of 400 intervals of one head about 380 hold the mean."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        documents = np.repeat(np.arange(30), rng.integers(1, 7, 30))
        values = 0.4 + (rng.normal(0, 0.1, 30)[documents] + rng.normal(0, 0.02, len(documents)))[:, None, None]
        width = widest_interval(of_shares(values, documents))
        hits += abs(values.mean() - 0.4) <= width / 2
    assert 365 <= hits <= 395
    values = rng.random((8, 1, 1))  # few documents count by window, and few windows not at all
    assert widest_interval(of_shares(values, np.zeros(8))) == widest_interval(of_shares(values, np.arange(8)))
    assert widest_interval(of_shares(values[:5], np.arange(5))) == np.inf


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A scan that nothing stopped but its own intervals, kept in a folder."""
    return attnscope.scan(
        "bundled", TEXT, until=0.06, out=tmp_path_factory.mktemp("until") / "run", show=False, **GIVEN
    )


def test_it_ends_where_the_intervals_are_narrow_enough(unbroken):
    whole = attnscope.scan("bundled", TEXT, limit=100, **GIVEN)
    found = unbroken
    texts = found.sizes["window"]
    looks = [4 * 4, 8 * 4, 16 * 4, 32 * 4, 64 * 4]
    assert texts in looks[1:]
    assert texts < whole.sizes["window"]
    assert f"Stopped after the first {texts} windows" in found.attrs["until"]
    assert f"{widest_interval(found):.2g} wide (--until 0.06)" in found.attrs["until"]
    for look in looks[: looks.index(texts)]:
        assert widest_interval(whole.isel(window=slice(look))) > 0.06
    assert widest_interval(found) <= 0.06
    assert found.entropy.equals(whole.entropy[:texts])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"limit": 20},
            "Read all 20 windows without stopping: the widest 95% interval of a head's mean share is {} wide ",
        ),
        ({"limit": 3}, "fewer than 6 windows have no 95% interval"),
        ({"pool": 2, "limit": 16}, r"all \d+ pools"),
    ],
)
def test_all_is_read_where_it_is_never_enough_and_counted_in_its_own_units(more, message):
    found = attnscope.scan("bundled", TEXT, until=0.0, **GIVEN, **more)
    width = widest_interval(found) if "pool" not in more else 0.0
    assert re.search(message.replace("{}", f"{width:.2g}"), found.attrs["until"])


@pytest.mark.parametrize("windows", [10, 58])
def test_one_that_was_stopped_ends_at_the_same(windows, unbroken, tmp_path, monkeypatch):
    def stop(progress):
        if progress.details["windows"] > windows:
            raise KeyboardInterrupt

    given = {"until": 0.06, "out": tmp_path / "run", "show": False, **GIVEN}
    with monkeypatch.context() as patched:
        patched.setattr(_run, "FLUSH_SECONDS", 0.0)
        patched.setattr(_run, "FLUSH_SHARE", 0.0)
        with pytest.raises(KeyboardInterrupt):
            attnscope.scan("bundled", TEXT, progress=stop, **given)
    assert attnscope.scan("bundled", TEXT, **given).identical(unbroken)


def test_what_has_no_share_or_a_part_alone_is_rejected(tmp_path):
    with pytest.raises(AttnscopeError, match="share of weight"):
        attnscope.scan("bundled", TEXT, until=0.1, statistics="entropy", **GIVEN)
    with pytest.raises(AttnscopeError, match="--task"):
        attnscope.scan("bundled", TEXT, until=0.1, task="1/2", out=tmp_path / "run")
    with pytest.raises(AttnscopeError, match="until"):
        attnscope.scan("bundled", TEXT, until=2.0)
