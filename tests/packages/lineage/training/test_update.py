"""What one update does, against the same in plain PyTorch; what is averaged and logged; when a training stops."""

from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from attnscope_lineage.checkpoints import read_log
from attnscope_lineage.training import Training
from tests.packages.lineage.training.small_trainings import small_train, small_training


def first_update(folder, **settings):
    """Mean loss, gradients (ten times Adam's first moments) and the weights after it."""
    with small_training(folder, **settings) as training:
        summed, count = training._update(training.data.epoch(0)[0])
    weights = dict(training.model.named_parameters())
    gradients = {name: 10 * training.optimizers.state[one]["exp_avg"] for name, one in weights.items()}
    return summed / count, gradients, weights


@pytest.mark.parametrize("clip", [0.1, 1e9])
def test_two_updates_are_those_of_plain_pytorch(clip, tmp_path):
    settings = {"clip": clip, "dropout": 0.0, "label_smoothing": 0.0, "learning_rate": 1e-3}
    with small_training(tmp_path / "out", **settings) as training:
        model = deepcopy(training.model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
        for members in training.data.epoch(0)[:2]:
            (batch,) = training.data.parts(members, 1, 0)
            loss = model(**batch).loss
            loss.backward()
            assert nn.utils.clip_grad_norm_(model.parameters(), clip) > 0.1
            optimizer.step()
            optimizer.zero_grad()
            summed, count = training._update(members)
            training.state.update += 1
            assert summed / count == pytest.approx(loss.item(), rel=1e-5)
    for one, other in zip(training.model.parameters(), model.parameters(), strict=True):
        found, expected = training.optimizers.state[one]["exp_avg"], optimizer.state[other]["exp_avg"]
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_an_update_in_parts_is_one_of_the_whole_batch(tmp_path):
    settings = {"dropout": 0.0, "clip": 1e9}
    loss, gradients, _ = first_update(tmp_path / "whole", **settings)
    for parts in (2, 50):  # more than there are pairs
        found = first_update(tmp_path / f"{parts}", **settings, accumulate=parts)
        assert found[0] == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(found[1], gradients, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("model", ["transformer", "recurrent", "masked-lm"])
def test_r_drop_is_of_what_dropout_makes_differ(model, tmp_path):
    def loss_and_gradients(**settings):
        folder = tmp_path / "-".join(map(str, settings.values()))
        return first_update(folder, model=model, clip=1e9, **settings)[:2]

    loss, gradients = loss_and_gradients(dropout=0.0)
    again = loss_and_gradients(dropout=1e-9, r_drop=5.0)  # which drops nothing
    assert again[0] == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(again[1], gradients, atol=1e-6, rtol=1e-4)
    least, one, two = (loss_and_gradients(dropout=0.3, r_drop=weight)[0] for weight in (1e-9, 5.0, 10.0))
    assert one > least * (1 + 1e-3)
    assert two - least == pytest.approx(2 * (one - least), rel=1e-3)


def test_bfloat16_is_of_products_alone(tmp_path, monkeypatch):
    losses = {}
    for precision in ("float32", "bfloat16"):
        losses[precision], gradients, weights = first_update(tmp_path / precision, precision=precision)
        assert {one.dtype for one in (*gradients.values(), *weights.values())} == {torch.float32}
    assert losses["bfloat16"] != losses["float32"]
    rounding = 2**-8  # of one number in bfloat16
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=rounding)
    for native, chosen in ((True, "bfloat16"), (False, "float32")):
        name = "attnscope_lineage.training.multiplies_bfloat16"
        monkeypatch.setattr(name, lambda _, native=native: native)
        assert first_update(tmp_path / f"{native}", precision="auto")[0] == losses[chosen]


def test_what_is_left_is_the_mean_of_the_last_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "validate", lambda _: {"loss": 1.0})
    out = tmp_path / "out"
    small_train(out, updates=4, average=3)
    kept = [load_file(out / "checkpoints" / f"{i:08d}" / "model.safetensors") for i in (2, 3, 4)]
    final = load_file(out / "model.safetensors")
    assert final.keys() == kept[0].keys()
    several = {name: torch.stack([one[name] for one in kept]) for name in final}
    torch.testing.assert_close(final, {name: one.mean(0) for name, one in several.items()}, atol=1e-6, rtol=0)
    assert several["embedding.weight"].std(0).max() > 1e-3


def test_patience_with_bleu_whatever_the_loss_says(tmp_path, monkeypatch):
    bleu = [1.0, 3.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0]
    found = iter([{"loss": 9.0 - i, "bleu": one} for i, one in enumerate(bleu)])
    monkeypatch.setattr(Training, "validate", lambda _: next(found))
    out = tmp_path / "out"
    small_train(out, updates=6, metric="bleu", patience=2, average=1, keep=1)
    assert read_log(out)[-1]["update"] == 4
    assert {int(one.name) for one in (out / "checkpoints").iterdir()} == {2, 4}


def test_tensorboard_shows_what_the_log_says(tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "validate", lambda self: {"loss": 1 / self.state.update})
    out = tmp_path / "out"
    for stop in (3, None):
        small_train(out, stop, updates=4, validate_every=2, tensorboard=True)
    board = EventAccumulator(str(out / "tensorboard")).Reload()
    shown = [((one.step, name), one.value) for name in board.Tags()["scalars"] for one in board.Scalars(name)]
    said = {(line["update"], name): value for line in read_log(out) for name, value in line.items()}
    said = {(step, name): value for (step, name), value in said.items() if name not in {"update", "chosen"}}
    assert {name for _, name in said} >= {"loss", "learning_rate", "valid_loss", "final_loss"}
    assert dict(shown) == pytest.approx(said, rel=1e-6)
    assert len(shown) == len(said)  # what was lost at the stop is not shown twice
