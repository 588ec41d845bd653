"""What a training reports: sizes, validations with translations, overfitting, and why it stops."""

import logging
import math

import pytest
import torch
from torch.nn import functional

from attnscope_lineage.checkpoints import read_log
from attnscope_lineage.config import TrainConfig
from attnscope_lineage.training import Training
from tests.cli.command import attnscope
from tests.packages.lineage.training.small_trainings import small_train, small_training


@pytest.fixture
def reported(caplog):
    caplog.set_level(logging.INFO, logger="attnscope")
    return lambda: caplog.messages


def test_sizes_are_reported_first(tmp_path, reported):
    with small_training(tmp_path / "run") as training:
        pass
    parameters = sum(one.numel() for one in training.model.parameters())
    tokens = len(training.data.tokenizer)
    assert reported() == [
        "pairs: 54 for training, 6 for validation",
        "dropped pairs: none",
        f"vocabulary: {tokens} tokens (subwords learned from the text)",
        f"parameters: {parameters:,}",
    ]


def test_a_validation_shows_four_translations_that_are_the_model_s(tmp_path, reported):
    small_train(tmp_path / "run", updates=2, metric="bleu")
    with small_training(tmp_path / "run", updates=2, metric="bleu") as training:
        training._set_weights([2])
        training.validate()
        valid = training.data.valid
    for update in (1, 2):
        (line,) = (line for line in read_log(tmp_path / "run") if "valid_loss" in line and line["update"] == update)
        assert len(line["samples"]) == 4
        assert all(tuple(pair) in set(zip(valid.source, valid.target, strict=True)) for *pair, _ in line["samples"])
        loss, bleu = line["valid_loss"], line["valid_bleu"]
        said = (
            f"update {update}: validation loss {loss:.3f}, perplexity {math.exp(loss):.1f}, BLEU {bleu:.1f}, training "
        )
        assert any(message.startswith(said) for message in reported())
        for source, reference, hypothesis in line["samples"]:
            lines = (f"  source: “{source}”", f"  reference: “{reference}”", f"  hypothesis: “{hypothesis[:140]}")
            messages = reported()
            assert any(
                [message.startswith(one) for message, one in zip(messages[at : at + 3], lines, strict=False)]
                == [True] * 3
                for at in range(len(messages))
            )
    assert [list(sample) for sample in training._samples] == line["samples"]


def test_the_validation_loss_is_that_of_plain_pytorch_text_by_text(tmp_path):
    with small_training(tmp_path / "run") as training:
        metrics = training.validate()
        losses = list(training._losses)
        total, tokens = [], 0
        for batch in training.data.validation():
            logits = training.model(**batch).logits
            each = functional.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
            total += each.sum(1).tolist()
            tokens += int((batch["labels"] != -100).sum())
    assert losses == pytest.approx(total, rel=1e-5)
    assert metrics["loss"] == pytest.approx(math.fsum(total) / tokens, rel=1e-5)


def follow(folder, monkeypatch, losses, training, spread=0.1):
    """Train with these losses, as a text of 40 pairs has them, and these training losses."""
    validations, updates = iter(losses), iter(training)

    def validate(self):
        loss = next(validations)
        draw = torch.Generator().manual_seed(self.state.update)
        noise = spread * torch.randn(40, generator=draw)
        self._losses = (loss + noise - noise.mean()).tolist()
        return {"loss": loss}

    monkeypatch.setattr(Training, "validate", validate)
    monkeypatch.setattr(Training, "_update", lambda *_: (next(updates), 1))
    small_train(folder, updates=len(training), average=1, patience=0)


FALLING = [4.0, 3.0, 2.0, 1.5, 1.2, 1.0]


@pytest.mark.parametrize(
    ("losses", "training", "spread", "named"),
    [
        ([4.0, 3.0, 3.2, 3.4, 3.6, 3.8], FALLING, 0.1, 2),
        ([4.0, 3.0, 2.9, 2.8, 2.7, 2.6], FALLING, 0.1, None),  # it falls
        ([4.0, 3.0, 3.2, 2.9, 3.1, 2.8], FALLING, 0.1, None),  # it rises once
        ([4.0, 3.0, 3.2, 3.4, 3.6, 3.8], [*FALLING[:2], 3.1, 3.2, 3.3, 3.4], 0.1, None),  # both rise
        ([4.0, 3.0, 3.01, 3.02, 3.01, 3.02], FALLING, 1.0, None),  # by chance
    ],
)
def test_overfitting_is_named_where_the_validation_loss_rises_beyond_chance_and_the_other_falls(
    losses, training, spread, named, tmp_path, monkeypatch, reported
):
    # the last two are the choice of weights at the end
    follow(tmp_path / "run", monkeypatch, [*losses, losses[-1], min(losses)], training, spread)
    warnings = [message for message in reported() if message.startswith("overfitting")]
    entries = [line for line in read_log(tmp_path / "run") if "overfitting" in line]
    if named is None:
        assert not warnings
        assert not entries
        return
    (warning,) = warnings
    risen, fallen = ((values[named - 1], values[named + 1]) for values in (losses, training))
    assert warning.startswith(
        f"overfitting: since update {named} the validation loss has risen from {risen[0]:.3f} to {risen[1]:.3f} while "
        f"the training loss fell from {fallen[0]:.3f} to {fallen[1]:.3f}"
    )
    assert [(line["update"], line["overfitting"]) for line in entries] == [(named + 2, named)]


def test_patience_is_on_by_default_and_says_why_it_stops(tmp_path, monkeypatch, reported):
    assert TrainConfig().patience == 8
    losses = [3.0, 1.0, *[2.0] * 20]
    validated = iter(losses)
    monkeypatch.setattr(Training, "validate", lambda _: {"loss": next(validated)})
    small_train(tmp_path / "run", updates=20, average=1)
    assert max(line["update"] for line in read_log(tmp_path / "run")) == 2 + 8
    assert "stopped: no better loss in 8 validations than 1.00, at update 2" in reported()


@pytest.mark.parametrize("metric", ["bleu", "loss"])
def test_what_is_kept_is_the_best_by_what_stops(metric, tmp_path):
    """A real training: no checkpoint that was validated is better than the model that is left."""
    folder = tmp_path / "run"
    small_train(folder, updates=12, metric=metric, patience=2, average=2, learning_rate=0.03)
    validated = [line[f"valid_{metric}"] for line in read_log(folder) if f"valid_{metric}" in line]
    sign = 1 if metric == "bleu" else -1
    best = max(sign * value for value in validated)
    final = read_log(folder)[-1][f"final_{metric}"]
    assert sign * final >= best - 1e-5
    with small_training(folder, updates=12, metric=metric, patience=2, average=2, learning_rate=0.03) as training:
        training.model.load_state_dict(type(training.model).from_pretrained(folder).state_dict())
        assert training.validate()[metric] == pytest.approx(final, rel=1e-5)


def test_the_command_prints_it_in_both_languages(tmp_path):
    small = ("--task-pairs", "100", "--encoder-width", "4", "--decoder-width", "8", "--warmup", "0", "--updates", "1")
    found = attnscope("train", *small, "--device", "cpu", "--out", "en", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("  hypothesis: “") == 4
    assert "vocabulary: " in found.stderr
    assert "attnscope: " not in found.stderr
    japanese = attnscope("train", *small, "--device", "cpu", "--out", "ja", "--lang", "ja", cwd=tmp_path)
    assert japanese.stderr.count("  訳文: “") == 4
    assert not [
        word for word in ("pairs", "vocabulary", "parameters", "validation", "source") if word in japanese.stderr
    ]
