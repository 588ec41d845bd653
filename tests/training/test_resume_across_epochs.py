"""A training that is stopped after every update, at the end of an epoch too, reaches the weights of an unbroken one."""

import pytest
import torch
from safetensors.torch import load_file

from attnscope.lineage.checkpoints import read_log
from attnscope.lineage.train import Training
from tests.training.small_trainings import small_train

KINDS = [
    {"model": "recurrent", "bpe_dropout": 0.3},
    {"model": "transformer", "accumulate": 2},
    {"model": "masked-lm"},
    {"model": "transformer", "optimizer": "muon"},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_stopped_after_every_update_is_unbroken(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "validate", lambda _: {"loss": 1.0})
    settings = kind | {"updates": 5, "dropout": 0.2}
    small_train(tmp_path / "unbroken", **settings)
    for stop in (2, 3, 4, 5, None):
        small_train(tmp_path / "broken", stop, **settings)
    broken, unbroken = (load_file(tmp_path / name / "model.safetensors") for name in ("broken", "unbroken"))
    torch.testing.assert_close(broken, unbroken, atol=0, rtol=0)
    again, once = (
        [(line["epoch"], line["loss"]) for line in read_log(tmp_path / name) if "epoch" in line]
        for name in ("broken", "unbroken")
    )
    assert again == once
    assert {epoch for epoch, _ in once} >= {0, 1}
