"""Expectations hold where all of the interval does, and say what they rest on."""

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from tests.image_models import SIDE, looking_vit


@pytest.fixture(scope="module")
def run():
    return attnscope.scan(limit=20, window=64)


def test_the_interval_decides_and_not_the_mean():
    shares = np.random.default_rng(0).normal(0.8, 0.3, (40, 1, 1, 1))
    run = xr.Dataset(
        {"profile": (("window", "layer", "head", "offset"), shares)},
        coords={"layer": [0], "head": [0], "offset": [-1], "source": ("window", [f"text {n}" for n in range(40)])},
    )
    weight = attnscope.expect(run, layer=0, head=0).attends_to(-1)
    assert weight.low < weight.mean < weight.high
    middle = (weight.low + weight.mean) / 2
    assert weight.mean > middle
    assert not weight > middle
    assert not weight < middle
    assert weight > weight.low - 0.01
    assert weight < weight.high + 0.01
    assert "95% interval" in repr(weight)


def test_a_real_head_is_what_it_is(run):
    head = attnscope.expect(run, layer=0, head=1)
    assert head.label == "next"
    assert head.attends_to(1) > 0.9
    assert head.attends_to(-1) < 0.05
    assert not head.attends_to(-1) > 0.0 or head.attends_to(-1).low > 0
    assert head.statistic("entropy") < 1.0


def test_what_cannot_be_expected_is_rejected(run):
    few = attnscope.scan(texts=["The tide is out."])
    for ask, says in (
        (lambda: attnscope.expect(run, layer=3, head=0), "no layer 3"),
        (lambda: attnscope.expect(run, layer=0, head=7), "no head 7"),
        (lambda: attnscope.expect(xr.Dataset(), layer=0, head=0), "no scan"),
        (lambda: attnscope.expect(run, layer=0, head=0).attends_to(40), "outside the band"),
        (lambda: attnscope.expect(run, layer=0, head=0).statistic("entrop"), "has no entrop"),
        (lambda: attnscope.expect(run, layer=0, head=0).statistic("profile"), "several numbers"),
        (lambda: attnscope.expect(few, layer=0, head=3).attends_to(-1) > 0.5, "6 windows or more"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            ask()


def test_beyond_the_band_the_share_at_a_chosen_offset_is_read():
    run = attnscope.scan(limit=8, window=48, band=2, offsets=[-20, -1])
    head = attnscope.expect(run, layer=0, head=3)
    far = head.attends_to(-20)
    assert far < 0.1
    assert far.mean == pytest.approx(float(run.weight_at.sel(layer=0, head=3, chosen_offset=-20).mean()), abs=0.01)
    assert repr(far).startswith("<share of the weight of head 0.3 at offset -20: ")
    assert repr(head.attends_to(-1)).startswith("<mean weight of head 0.3 at offset -1: ")
    with pytest.raises(AttnscopeError, match=r"or with --offsets -19$"):
        head.attends_to(-19)
    shares = run.drop_vars("profile")
    assert repr(attnscope.expect(shares, layer=0, head=3).attends_to(-1)).startswith("<share of the weight")


def test_groups_have_their_weights():
    texts = ["The 3 boats left at 7.", "In 1907 the tide took 12 boats."] * 3
    seen = attnscope.scan(texts=texts, groups="types")
    known = seen.group_weight.sel(layer=0, head=3, group_query="number").mean("window")
    head = attnscope.expect(seen, layer=0, head=3)
    key = str(known.group_key[0].item())
    assert head.group_weight("number", key).mean == pytest.approx(float(known[0]))
    with pytest.raises(AttnscopeError, match="no group 'picture'"):
        head.group_weight("picture", "number")


def test_of_images_offsets_are_rows_and_columns():
    seen = attnscope.scan(
        looking_vit(((0, -1), (-1, 0))),
        torch.linspace(0, 1, 6)[:, None, None, None].expand(6, 3, SIDE, SIDE),
        device="cpu",
    )
    left, up = (attnscope.expect(seen, layer=0, head=head) for head in (0, 1))
    assert left.attends_to((0, -1)) > 0.99
    assert up.attends_to((-1, 0)) > 0.99
    assert up.attends_to((0, -1)) < 0.01
    assert "over 6 images" in repr(left.statistic("same_row"))
    for ask, says in (
        (lambda: left.attends_to(-1), r"rows down and columns to the right"),
        (lambda: left.attends_to((0, 4)), "outside the band"),
        (lambda: left.group_weight("text", "image"), "has no group_weight"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            ask()
