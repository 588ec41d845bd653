"""A model whose heads are shared out among two processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.capture import load_model
from attnscope.store import unpacked
from tests.capture.in_a_team import TEXTS
from tests.families import tiny


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A model, what two processes say of it and save, and the run that they keep."""
    folder = tmp_path_factory.mktemp("team")
    model = tiny("llama")
    tokenizer = load_model("bundled", device="cpu").tokenizer
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = [Path(__file__).with_name("in_a_team.py"), folder / "model", folder / "run", folder]
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_each_process_has_the_results_of_all_heads(team):
    folder, _ = team
    whole = attnscope.scan(folder / "model", TEXTS, window=32, batch_size=1, groups="kinds", device="cpu")
    assert whole.sizes["head"] == 4
    for rank in range(2):
        parts = np.load(folder / f"{rank}.npz")
        assert "band_sum" in parts
        for name in parts:
            np.testing.assert_allclose(parts[name], whole[name].values, rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_first_keeps_a_run_that_goes_on_where_it_stopped(team):
    folder, done = team
    assert done.stdout.count("stopped") == 2
    assert "rank 0 has True" in done.stdout
    assert "rank 1 has False" in done.stdout
    whole = attnscope.scan(folder / "model", TEXTS, window=32, batch_size=1, groups="kinds", device="cpu")
    kept = open_run(folder / "run")
    np.testing.assert_allclose(kept.entropy, whole.entropy, rtol=1e-4)
    assert '"tensor_parallel": 2' in kept.attrs["signature"]


def test_the_maps_are_of_all_heads(team):
    folder, _ = team
    given = {"window": 32, "batch_size": 1, "groups": "kinds", "device": "cpu"}
    attnscope.scan(folder / "model", TEXTS, **given, out=folder / "alone", show=[(0, 1)])
    theirs, ours = (unpacked((folder / name / "sample.zarr.zip").read_bytes()) for name in ("run", "alone"))
    maps = [sorted(zip(one.layer_of.values, one.head_of.values, strict=True)) for one in (theirs, ours)]
    assert maps[0] == maps[1]


def test_what_cannot_put_heads_together_refuses_them(team):
    assert team[1].stdout.count("are shared out among 2 processes (tp_plan)") == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp_plan": "auto"}, "this one is alone: start them with torchrun"),
        ({"tp_plan": "all"}, "is 'all'; expected auto"),
        ({"tp_plan": "auto", "device": "cpu"}, "does not go with device"),
        ({"tp_plan": "auto", "device_map": "auto"}, "does not go with device_map"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(given, said):
    with pytest.raises(AttnscopeError, match=said):
        attnscope.scan("bundled", "The tide.", **given)
