"""Sets of heads at once: one head is its own effect, backups lose more together, and the page says so."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.intervention.ablation import effects, joint_ablation
from attnscope.results.reports import report_of, write_page
from attnscope_zoo.catalogue import build
from tests.intervention.small_models import TEXTS

PLAIN = {"texts": TEXTS, "ablations": ["zero", "mean"], "steps": 0, "why": False}


def test_a_set_of_one_is_that_head_and_a_pair_is_more_than_either(tmp_path):
    tree = attnscope.intervene(**PLAIN, together=[[(0, 1)], [(0, 1), (0, 3)]])
    found = tree["together"].to_dataset()
    single = tree["effects"].loss_change
    np.testing.assert_allclose(
        found.loss_change.isel(set=0).transpose(*single.dims[:2]), single.sel(layer=0, head=1), atol=1e-5
    )
    np.testing.assert_allclose(found.between.isel(set=0), 0, atol=1e-5)
    assert found["set"].values.tolist() == ["0.1", "0.1 0.3"]
    assert (found.effect.isel(set=1) > single.sel(layer=0, head=[1, 3]).mean("window").max()).all()
    alone = single.sel(layer=0, head=[1, 3]).sum("head").mean("window")
    np.testing.assert_allclose(found.alone.isel(set=1), alone, atol=1e-9)
    page = write_page(report_of("intervene", tree), tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="together"' in page
    assert "<bdi>0.1 0.3</bdi>" in page


@pytest.mark.parametrize("name", ["redundant-decoder-1", "spare-encoder-2"])
def test_backup_heads_lose_far_more_together_than_their_sum(name):
    animal = build(name)
    (pair,) = animal.redundant
    asked = benchmark("zoo")._Asked(animal)
    single = effects(asked, asked.slices()[0], ["zero"], steps=0)
    found = joint_ablation(asked, [pair], ["zero"], single).isel(ablation=0)
    assert float(found.between.isel(set=0)) > float(found.alone.isel(set=0))
    assert bool(found.between_shown.isel(set=0))


def benchmark(name):
    spec = spec_from_file_location(name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("sets", "says"), [([[(3, 0)]], "no head 3.0"), ([[(0, 9)]], "no head 0.9"), ([[]], "found no heads")]
)
def test_heads_that_do_not_exist_are_rejected(sets, says):
    with pytest.raises(AttnscopeError, match=says):
        attnscope.intervene(**PLAIN, together=sets)
