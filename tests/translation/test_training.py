"""A training that was stopped is one that was not; two processes are one with all of the batch; wrong settings."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from attnscope import AttnscopeError
from attnscope.translation.build import build_model
from attnscope.translation.config import TrainConfig, read_config
from attnscope.translation.log import read_log
from attnscope.translation.presets import PRESETS
from attnscope.translation.processes import Processes
from attnscope.translation.training import Training, train

SMALL = {
    "task_pairs": 400,
    "task_longest": 12,
    "vocabulary": 330,
    "batch_tokens": 300,
    "updates": 12,
    "validate_every": 4,
    "log_every": 2,
    "warmup": 4,
    "average": 2,
    "threads": 1,
    "dropout": 0.1,
    "metric": "loss",
}
RECURRENT = {"model": "recurrent", "embedding_width": 8, "encoder_width": 8, "decoder_width": 16}
TRANSFORMER = {"model": "transformer", "width": 16, "heads": 2, "feed_forward": 16, "layers": 1}


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Folders of trainings that ran through, by kind of model."""
    folders = {}
    for kind in (RECURRENT, TRANSFORMER):
        folders[kind["model"]] = tmp_path_factory.mktemp(kind["model"])
        train(out=folders[kind["model"]], **SMALL, **kind)
    return folders


class Stopped(Exception):  # noqa: N818 says what it is
    pass


@pytest.mark.parametrize("kind", [RECURRENT, TRANSFORMER], ids=lambda kind: kind["model"])
@pytest.mark.parametrize("when", [4, 6])
def test_stopped_and_gone_on_is_unbroken(kind, when, unbroken, tmp_path):
    def stop(told):
        if told.update == when:
            raise Stopped

    with pytest.raises(Stopped):
        train(out=tmp_path, progress=stop, **SMALL, **kind)
    train(out=tmp_path, **SMALL, **kind)
    assert same(weights(tmp_path), weights(unbroken[kind["model"]]))
    times = {"seconds", "tokens_per_second"}
    plain = [
        [{k: v for k, v in line.items() if k not in times} for line in read_log(folder)]
        for folder in (tmp_path, unbroken[kind["model"]])
    ]
    assert plain[0] == plain[1]


def start(folder, **settings):
    """The command that a user types, in a process of its own."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [
        sys.executable,
        "-c",
        "from attnscope.cli import main; main()",
        "train",
        f"--out={folder}",
        *flags,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_twice_and_gone_on_is_unbroken(unbroken, tmp_path):
    for lines in (1, 4):
        process = start(tmp_path, **SMALL, **RECURRENT)
        until = time.monotonic() + 120
        while len(read_log(tmp_path)) < lines and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    last = start(tmp_path, **SMALL, **RECURRENT)
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert same(weights(tmp_path), weights(unbroken["recurrent"]))


def test_two_processes_are_one_with_all_of_the_batch(tmp_path):
    settings = SMALL | TRANSFORMER | {"dropout": 0.0, "precision": "float32", "log_every": 1}
    train(out=tmp_path / "one", **settings)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    program = tmp_path / "attnscope_train.py"
    program.write_text("from attnscope.cli import main; main()")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(program), "train"]
    done = subprocess.run(
        [*command, f"--out={tmp_path / 'two'}", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    curves = [
        [line["loss"] for line in read_log(tmp_path / name) if "loss" in line] for name in ("one", "two")
    ]
    assert len(curves[0]) == 12
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[0][-1] < curves[0][0]


def test_what_is_left_is_a_model_of_transformers(unbroken):
    folder = unbroken["transformer"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size
    assert read_config(folder / "config.yaml").layers == 1
    assert not [file for file in folder.rglob("*") if file.suffix in {".bin", ".pt", ".pth", ".pkl"}]


def test_masked_language_model(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(f"the {a} {b} sat on the {c}" for a in "abc" for b in "defg" for c in "hij") * 20
    )
    settings = SMALL | {"model": "masked-lm", "width": 16, "heads": 2, "feed_forward": 16, "layers": 1}
    settings |= {"longest": 24, "positions": "learned", "learning_rate": 0.01, "updates": 40, "keep": 5}
    found = train(out=tmp_path / "out", text=text, **settings)
    first = next(line for line in read_log(tmp_path / "out") if "valid_loss" in line)
    assert set(found) == {"loss"}
    assert found["loss"] < 0.7 * first["valid_loss"]
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out").config.positions == "learned"
    kept = {int(place.name) for place in (tmp_path / "out" / "checkpoints").iterdir()}
    assert kept >= {24, 28, 32, 36, 40}
    assert len(kept) <= 6  # with the best


def test_without_data_the_generated_task_is_learned_by_its_preset(tmp_path):
    train(out=tmp_path, **SMALL | {"dropout": 0.2})
    found = read_config(tmp_path / "config.yaml")
    assert (found.model, found.attention, found.join) == ("recurrent", "additive", PRESETS["additive"].join)
    assert (found.dropout, found.updates) == (0.2, SMALL["updates"])
    assert 0 <= read_log(tmp_path)[-1]["final_aer"] <= 1


def test_a_setting_of_another_model_than_the_preset_is_refused(tmp_path):
    with pytest.raises(AttnscopeError, match="'heads' is a setting of model 'transformer'"):
        train(out=tmp_path / "out", heads=2)
    assert not (tmp_path / "out").exists()


def test_the_rate_of_a_training_cools_down(tmp_path):
    settings = SMALL | RECURRENT | {"schedule": "constant", "warmup": 0, "learning_rate": 1e-3, "cooldown": 4}
    train(out=tmp_path, **settings)
    rates = [line["learning_rate"] for line in read_log(tmp_path) if "learning_rate" in line]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3, 1e-3, 0.75e-3, 0.25e-3])


@pytest.mark.parametrize(
    ("mean", "best", "chosen"),
    [(1.0, 2.0, "mean of the last checkpoints"), (2.0, 1.0, "best checkpoint")],
)
def test_the_lower_loss_is_kept_whatever_bleu_says(mean, best, chosen, tmp_path, monkeypatch):
    found = [{"loss": 3.0, "bleu": bleu} for bleu in (9.0, 1.0, 1.0)]
    found += [{"loss": mean, "bleu": 5.0 * mean}, {"loss": best, "bleu": 5.0 * best}]
    validated = iter(found)
    monkeypatch.setattr(Training, "validate", lambda _: next(validated))
    assert train(out=tmp_path, **SMALL | RECURRENT | {"metric": "bleu"})["loss"] == 1.0
    assert read_log(tmp_path)[-1]["chosen"] == chosen


def test_weight_decay_takes_its_share_of_matrices_alone(tmp_path):
    """After one step from the same weights, decay has taken rate times decay of each matrix, and nothing of vectors."""
    rate, decay = 1e-3, 0.5
    once = SMALL | TRANSFORMER | {"updates": 1, "schedule": "constant", "warmup": 0, "learning_rate": rate}
    found = {}
    for given in (0.0, decay):
        train(out=tmp_path / str(given), **once, weight_decay=given)
        found[given] = weights(tmp_path / str(given))
    torch.manual_seed(0)  # as training seeds it
    first = build_model(read_config(**once), len(found[0.0]["embedding.weight"])).state_dict()
    for name, plain in found[0.0].items():
        taken = decay * rate * first[name] if plain.ndim > 1 else torch.zeros(())
        torch.testing.assert_close(found[decay][name], plain - taken, atol=1e-7, rtol=0)


def test_texts_that_cannot_be_read_leave_no_folder(tmp_path):
    with pytest.raises(AttnscopeError, match="nowhere"):
        train(out=tmp_path / "out", source=tmp_path / "nowhere", target=tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()


def test_early_stopping(tmp_path):
    train(out=tmp_path, **SMALL | RECURRENT | {"updates": 100, "patience": 1, "learning_rate": 1e-9})
    assert read_log(tmp_path)[-1]["update"] < 100


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    from attnscope.translation import checkpoints

    real = checkpoints.save_file
    calls = []

    def full(tensors, path):
        calls.append(path)
        if len(calls) == 4:  # the optimizer's moments of the second checkpoint
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(AttnscopeError, match=r"update 8 could not be written .* those before it are whole"):
        train(out=tmp_path, **SMALL, **RECURRENT)
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["00000004"]


def test_a_folder_holds_one_training(unbroken):
    with pytest.raises(AttnscopeError, match=r"holds a training with learning_rate = 0\.004; found 0\.1"):
        train(out=unbroken["recurrent"], **SMALL, **RECURRENT, learning_rate=0.1)


def test_a_loss_that_is_no_number_stops_the_training(tmp_path, monkeypatch):
    training = Training(TrainConfig(**SMALL, **RECURRENT), tmp_path, Processes())
    monkeypatch.setattr(
        training.model, "summed_loss", lambda **_: next(training.model.parameters()).sum() * torch.nan
    )
    with pytest.raises(
        AttnscopeError, match=r"the loss of update 1 is nan: try a smaller learning_rate \(now 0\.002\)"
    ):
        training.run()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lable_smoothing: 0.1", "there is no setting 'lable_smoothing': did you mean 'label_smoothing'?"),
        ("dropout: 1.5", "dropout is 1.5: Input should be less than 1"),
        ("heads: two", "heads is 'two': Input should be a valid integer"),
        ("model: rnn", "model is 'rnn': Input should be 'transformer', 'recurrent' or 'masked-lm'"),
        ("- a list", "holds a list; expected settings"),
        ("a: b: c", "is not YAML: mapping values are not allowed here"),
        ("target: b.txt", "found target without source: give both"),
        ("attention: dot", "'attention' is a setting of model 'recurrent', and the model is 'transformer'"),
        (
            "model: recurrent\nlayers: 2",
            "'layers' is a setting of model 'transformer' and 'masked-lm', and the model is 'recurrent'",
        ),
    ],
)
def test_wrong_settings_are_named(text, message, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(AttnscopeError) as caught:
        read_config(file)
    assert message in str(caught.value)


def test_flags_take_the_place_of_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"updates": 7, "dropout": 0.3}))
    config = read_config(file, updates=9, dropout=None)
    assert (config.updates, config.dropout) == (9, 0.3)
