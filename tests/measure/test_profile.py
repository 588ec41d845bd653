"""The profile is not kept beside the sums that it is made of, and comes back bit for bit."""

import json

import numpy as np
import pytest
import torch
import transformers as T

import attnscope
from attnscope import open_run
from attnscope.measure.offset_shares import pairs_of, profile_of
from attnscope.store.runs import RunFolder
from tests.measure.test_targets import TARGETS, TEXTS
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny


def given(name):
    if name == "bundled":
        return {"model": "bundled", "texts": TEXTS, "device": "cpu"}
    if name == "bart":
        return {
            "model": small_model(name),
            "texts": TEXTS,
            "targets": TARGETS,
            "tokenizer": small_tokenizer(),
            "band": 3,
        }
    return {"model": tiny(name), "texts": TEXTS, "tokenizer": small_tokenizer(), "window": 12}


@pytest.mark.parametrize("name", ["bundled", "llama", "bart"])
def test_the_profile_read_is_the_profile_measured(name, tmp_path):
    measured = attnscope.scan(**given(name))
    stored = attnscope.scan(**given(name), out=tmp_path / "run", show=False)
    assert stored.profile.identical(measured.profile)
    assert open_run(tmp_path / "run").identical(stored)
    run = RunFolder(tmp_path / "run", json.loads(stored.attrs["signature"])).look()
    assert "profile" not in run.results()
    pairs = pairs_of(stored)
    for (text, layer), _ in np.ndenumerate(pairs.isel(offset=0)):
        kind, source = str(stored.layer_kind.values[layer]), int(stored.length[text])
        target = int(stored.target_length[text]) if "target_length" in stored else source
        queries, keys = source if kind == "self" else target, target if kind == "causal" else source
        expected = [sum(0 <= i + t < keys for i in range(queries)) for t in stored.offset.values]
        assert pairs[text, layer].values.tolist() == expected
    if name == "bundled":  # without the sums the profile is stored by itself
        alone = attnscope.scan(**given(name), statistics="profile", out=tmp_path / "alone", show=False)
        assert alone.profile.identical(measured.profile)


def test_a_profile_that_does_not_follow_from_the_lengths_is_stored(tmp_path):
    """Funnel pools its tokens, so that layers have other places than tokens."""
    config = T.FunnelConfig(
        vocab_size=60, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=48
    )
    torch.manual_seed(0)
    asked = {"model": T.FunnelModel(config).eval(), "texts": TEXTS, "tokenizer": small_tokenizer(), "window": 12}
    kept, measured = attnscope.scan(**asked, out=tmp_path / "run", show=False), attnscope.scan(**asked)
    assert not np.array_equal(profile_of(kept), kept.profile, equal_nan=True)
    assert kept.profile.identical(measured.profile)
