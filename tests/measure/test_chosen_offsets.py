"""The weight at offsets that were chosen: held against eager attention, and against the band where they overlap."""

import json
import re

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.measure.stored import notes_of
from attnscope.read.encoded import texts_of, windows_of
from attnscope.report.render import as_json
from attnscope.results.page.scan import page_data
from attnscope.results.scan_report import report
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny_reader

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again. " * 2, "Nobody has seen the keeper."]
OFFSETS = (-29, -16, -1, 0, 20)


def share_at(weights, offset):
    """Of all weight of the queries, what lies at an offset."""
    return np.trace(weights, offset, -2, -1) / weights.shape[-2]


@pytest.mark.parametrize("family", ["bert", "gemma2"])
def test_eager_attention_has_the_same_weight_at_each(family):
    model, tokenizer = tiny_reader(family)
    asked = {"tokenizer": tokenizer, "window": 32, "statistics": "entropy", "offsets": OFFSETS[::-1]}
    found = attnscope.scan(model, TEXTS, band=2, batch_size=8, **asked)
    assert found.chosen_offset.values.tolist() == list(OFFSETS)  # in whichever order they were given
    assert json.loads(found.attrs["signature"])["settings"]["offsets"] == list(OFFSETS)
    assert found.chosen_offset.attrs == {"long_name": "Chosen offset, key minus query", "units": "tokens"}
    model.set_attn_implementation("eager")
    windows = [*windows_of(texts_of(TEXTS), tokenizer, length=32)]
    assert len({len(window.ids) for window in windows}) > 1  # some are padded in the batch
    for text, window in enumerate(windows):
        with torch.no_grad():
            layers = model(torch.tensor([window.ids]), output_attentions=True).attentions
        weights = torch.stack(layers)[:, 0].double().numpy()
        even = (weights[:, 0] > 0) / (weights[:, 0] > 0).sum(-1, keepdims=True)
        for offset in OFFSETS:
            here = found.isel(window=text).sel(chosen_offset=offset)
            can = (share_at(even, offset) > 0)[:, None]
            share = np.where(can, share_at(weights, offset), np.nan)
            np.testing.assert_allclose(here.weight_at, share, atol=2e-6)
            equal = np.where(can[:, 0], share_at(even, offset), np.nan)
            np.testing.assert_allclose(here.equal_weight_at, equal, atol=1e-6)


def test_those_of_the_band_are_its_shares():
    """More offsets than are summed at once; words, too, whose rows are scaled."""
    for more in ({}, {"words": "unicode"}):
        found = attnscope.scan(texts=TEXTS, statistics="band_sum", band=9, offsets=range(-9, 10), **more)
        of_band = found.band_sum.values / found.length.values[:, None, None, None]
        np.testing.assert_allclose(found.weight_at.fillna(0), of_band, atol=1e-6)
        equal = found.equal_band_sum.values / found.length.values[:, None, None]
        np.testing.assert_allclose(found.equal_weight_at.fillna(0), equal, atol=1e-6)
        assert (found.equal_weight_at.isnull().values == (equal == 0)).all()


def test_of_some_rows_they_are_still_those_of_all():
    asked = {"texts": TEXTS[:1] * 2, "window": 40, "offsets": [-30, -2], "seed": 1}
    some, every = attnscope.scan(**asked, rows=16), attnscope.scan(**asked)
    np.testing.assert_allclose(some.weight_at, every.weight_at, atol=1e-6)
    np.testing.assert_array_equal(some.equal_weight_at, every.equal_weight_at)
    assert "weight_at_error" not in some
    assert "weight_at" in some.attrs["rows"].split("Exact: ")[1]
    apart, pools = (attnscope.scan(texts=TEXTS, window=32, offsets=[-3, -20], pool=pool) for pool in (None, 9))
    assert bool(apart.weight_at.isnull().any())  # a window that is too short, whose queries count too
    expected = np.average(apart.weight_at.fillna(0), 0, weights=apart.length)
    np.testing.assert_allclose(pools.weight_at.values[0], expected, atol=1e-9)


def test_what_cannot_be_looked_at_is_not_0():
    """Three causes: a mask, a window of some layers alone, and texts that are too short; the null says none too."""
    readers = {name: tiny_reader(name) for name in ("gpt2", "mistral")}
    models = {name: model for name, (model, _) in readers.items()}
    asked = {"tokenizer": readers["gpt2"][1], "window": 32, "statistics": "entropy"}
    found = attnscope.scan(models["gpt2"], TEXTS, offsets=[-25, -1, 1], **asked)
    short = found.length.values <= 25
    assert short.any()
    assert not short.all()
    for name in ("weight_at", "equal_weight_at"):
        assert found[name].sel(chosen_offset=1).isnull().all()
        assert found[name].sel(chosen_offset=-1).notnull().all()
        known = found[name].sel(chosen_offset=-25).notnull()
        assert known.any([dim for dim in known.dims if dim != "window"]).values.tolist() == (~short).tolist()
    texts = len(short)
    assert notes_of(found)["offsets"] == (
        f"weight_at_-25: mean over {texts - short.sum()} of {texts} windows (the others are too short). "
        "weight_at_1: missing (the mask hides this offset)."
    )
    brief = attnscope.scan(models["gpt2"], TEXTS[1:], offsets=[-25], **asked)
    assert (
        notes_of(brief)["offsets"]
        == f"weight_at_-25: missing (the longest window has {int(brief.length.max())} tokens)."
    )
    windowed = attnscope.scan(models["mistral"], TEXTS[:1], offsets=[-20, -1], **asked)  # it sees 8 tokens
    assert notes_of(windowed)["offsets"] == "weight_at_-20: missing (the mask hides this offset)."
    told = as_json(report(found, data=True), "")
    chosen = [row["share"] for row in told["tables"]["offsets"] if row["of"] == "chosen"]
    assert {one for share in chosen for one in share[2:]} == {None}
    assert any("the mask hides this offset" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([-128], r"offsets \(--offsets\) has -128; in windows of 128 tokens they are -127 to 127: .* \(--window\)$"),
        ([0.5], r"offsets is \[0.5\] \(list\); expected a list of whole numbers"),
        ([], r"offsets \(--offsets\) is empty"),
    ],
)
def test_what_is_no_offset_is_rejected(no_types, offsets, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(texts=TEXTS, offsets=offsets)


def test_what_an_option_brings_may_be_named_beside_it():
    """What a signature holds can be given again."""
    asked = {"texts": TEXTS, "offsets": [-1], "groups": "types"}
    signature = attnscope.scan(**asked, statistics="entropy").attrs["signature"]
    names = json.loads(signature)["settings"]["statistics"]
    assert {"weight_at", "group_weight"} <= {*names}
    assert attnscope.scan(**asked, statistics=names).attrs["signature"] == signature


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("weight_at", "needs offsets, in a scan of texts: add --offsets -1,-64"),
        ("weight_at_-64", "needs offsets"),
        ("group_weight", "needs groups, in a scan of texts: add --groups types"),
        ("entropy_by_group", "needs groups"),
        ("group_rows", "needs groups and a pool"),
        ("block_recall_5", "is part of block_recall: request block_recall"),
        ("equal_entropy", "is computed automatically and cannot be requested by name"),
    ],
)
def test_listed_statistics_that_need_an_option_name_it(name, said):
    with pytest.raises(AttnscopeError, match=f"^{re.escape(f'{name} {said}')}"):
        attnscope.scan(texts=TEXTS, statistics=f"entropy,{name}")


def test_the_command_has_them_in_its_table_json_csv_and_page(tmp_path):
    words = ("scan", "--limit", "2", "--window", "64", "--offsets", "-40,-1", "--out", "run", "--figures", "none")
    found = command(*words, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    run = attnscope.open_run(tmp_path / "run")
    mean = run.weight_at.mean("window")
    (line,) = (line for line in found.stdout.splitlines() if "weight_at_-40" in line)
    at, equal = (one.sel(chosen_offset=-40) for one in (mean, run.equal_weight_at))
    cells = [line.split()[1 + place] for place in (0, 2, 3, 5)]
    assert cells == [f"{float(one):.3g}" for one in (at.min(), at.mean(), at.max(), equal.mean())]
    heads = as_json(report(run, data=True), "")["tables"]["heads"]
    expected = mean.sel(chosen_offset=-1).transpose("layer", "head").values.ravel()
    np.testing.assert_allclose([row["weight_at_-1"] for row in heads], expected)
    keys = {one["key"]: one["name"] for one in page_data(run)["quantities"]}
    assert keys["weight_at_-40"] == "Share of the weight at offset -40"
    csv = command(*words, "--csv", cwd=tmp_path).stdout.splitlines()
    assert {"weight_at_-40", "weight_at_-1"} <= {*csv[0].split(",")}
    failed = command(*words[:5], "--offsets", "-1,last", cwd=tmp_path)
    assert "--offsets is '-1,last'; expected whole numbers" in failed.stderr
