"""A model whose heads are shared out among two processes."""

from socket import socket

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.capture.load import load_model
from attnscope.store.arrays import unpacked
from tests.capture import in_a_team
from tests.capture.in_a_team import TEXTS
from tests.families import tiny
from tests.process import Started


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A model, what two processes say of it and save, and the run that they keep."""
    folder = tmp_path_factory.mktemp("team")
    model = tiny("llama")
    tokenizer = load_model("bundled", device="cpu").tokenizer
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [folder / "model", folder / "run", folder]
    processes = [  # with what torchrun sets
        Started(*words, instead=in_a_team.main, RANK=rank, LOCAL_RANK=rank, OMP_NUM_THREADS="1", **given)
        for rank in ("0", "1")
    ]
    said = [process.communicate(240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    done = "".join(out for out, _ in said)
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
    assert done.count("stopped") == 2
    assert "rank 0 has True" in done
    assert "rank 1 has False" in done
    whole = attnscope.scan(folder / "model", TEXTS, window=32, batch_size=1, groups="kinds", device="cpu")
    kept = open_run(folder / "run")
    np.testing.assert_allclose(kept.entropy, whole.entropy, rtol=1e-4)
    assert '"tensor_parallel": 2' in kept.attrs["signature"]


def test_the_maps_are_of_all_heads(team):
    folder, _ = team
    given = {"window": 32, "batch_size": 1, "groups": "kinds", "device": "cpu"}
    attnscope.scan(folder / "model", TEXTS, **given, out=folder / "alone", show=[(0, 1)])
    theirs, ours = (unpacked((folder / name / "sample.npz").read_bytes()) for name in ("run", "alone"))
    maps = [sorted(zip(one.layer_of.values, one.head_of.values, strict=True)) for one in (theirs, ours)]
    assert maps[0] == maps[1]


def test_what_cannot_put_heads_together_refuses_them(team):
    assert team[1].count("are shared out among 2 processes (tp_plan)") == 2


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
