"""A training that was stopped is one that was not; two processes are one with all of the batch; wrong settings."""

import resource
import shutil
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from attnscope import AttnscopeError
from attnscope.store.folder import OwnedFolder, manifest_of
from attnscope_lineage import checkpoints, train
from attnscope_lineage import comparison as held_out
from attnscope_lineage.checkpoints import LOG, Log, read_log
from attnscope_lineage.config import TrainConfig, read_config
from attnscope_lineage.data import read_data
from attnscope_lineage.training import Processes, Training
from tests.command_processes import Started, wait_until
from tests.packages.lineage.training.small_trainings import small_train

SMALL = {
    "task_pairs": 150,
    "task_longest": 4,  # words: the time goes into translating the validation text, again and again
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


def start(folder, *, environment=None, **settings):
    """The command that a user types, in a process of its own."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return Started("train", f"--out={folder}", *flags, prepare=few_sentences, **environment or {})


def few_sentences():
    """Of those that the command translates at the end, to show what was learned."""
    held_out.HELD_OUT = 20


def test_killed_and_resumed_is_unbroken(unbroken, tmp_path):
    process = start(tmp_path, **SMALL, **RECURRENT)
    wait_until(lambda: len(read_log(tmp_path)) >= 4, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(read_log(tmp_path)) < len(read_log(unbroken["recurrent"]))
    last = start(tmp_path, **SMALL, **RECURRENT)
    _, errors = last.communicate()
    assert last.returncode == 0, errors
    assert same(weights(tmp_path), weights(unbroken["recurrent"]))


def test_two_processes_are_one_with_all_of_the_batch(tmp_path):
    settings = SMALL | TRANSFORMER | {"dropout": 0.0, "precision": "float32", "log_every": 1}
    settings |= {"bpe_dropout": 0.1, "tokens": "subwords"}
    train(out=tmp_path / "one", **settings)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [
        start(tmp_path / "two", environment=together | {"RANK": rank, "LOCAL_RANK": rank}, **settings)
        for rank in ("0", "1")  # what torchrun sets
    ]
    printed = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert [out.count("validation:") for out, _ in printed] == [1, 0]  # one of them speaks for both
    curves = [[line["loss"] for line in read_log(tmp_path / name) if "loss" in line] for name in ("one", "two")]
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
    text.write_text("\n".join(f"the {a} {b} sat on the {c}" for a in "abc" for b in "defg" for c in "hij") * 20)
    settings = SMALL | {"model": "masked-lm", "width": 16, "heads": 2, "feed_forward": 16, "layers": 1}
    settings |= {"longest": 24, "positions": "learned", "learning_rate": 0.01, "updates": 40, "keep": 5}
    settings = {name: value for name, value in settings.items() if not name.startswith("task_")}
    found = train(out=tmp_path / "out", text=text, **settings)
    first = next(line for line in read_log(tmp_path / "out") if "valid_loss" in line)
    assert {"bleu", "validation_bleu", "alignment_error_rate"}.isdisjoint(found)
    assert found["loss"] < 0.7 * first["valid_loss"]
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out").config.positions == "learned"
    kept = {int(place.name) for place in (tmp_path / "out" / "checkpoints").iterdir()}
    assert kept >= {24, 28, 32, 36, 40}
    assert len(kept) <= 6  # with the best


def test_a_masked_language_model_restores_replaced_words(tmp_path):
    pairs = [
        (f"{a} saw {b} and it was {c}", f"{a} saw {b} and {b} was {c}") for a in "ab" for b in "cdef" for c in "gh"
    ]
    for side, lines in zip(("source", "target"), zip(*pairs * 20, strict=True), strict=True):
        (tmp_path / side).write_text("\n".join(lines))
    settings = SMALL | {"model": "masked-lm", "width": 16, "heads": 2, "feed_forward": 16, "layers": 1}
    settings |= {"positions": "learned", "learning_rate": 0.01, "updates": 80, "keep": 5}
    settings = {name: value for name, value in settings.items() if not name.startswith("task_")}
    found = train(out=tmp_path / "out", source=tmp_path / "source", target=tmp_path / "target", **settings)
    assert found["loss"] < 0.5
    model, tokenizer = (kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForMaskedLM, AutoTokenizer))
    encoded = tokenizer([source for source, _ in pairs], return_tensors="pt")
    restored = model(**encoded).logits.argmax(-1)[:, 5]
    assert restored.tolist() == tokenizer([target for _, target in pairs], return_tensors="pt").input_ids[:, 5].tolist()
    (tmp_path / "target").write_text("\n".join(source for source, _ in pairs * 20))
    with pytest.raises(AttnscopeError, match="another token at one position or more"):
        train(out=tmp_path / "other", source=tmp_path / "source", target=tmp_path / "target", **settings)


@pytest.mark.parametrize("metric", ["bleu", "loss"])
@pytest.mark.parametrize("mean", [1.0, 2.0])
def test_the_metric_that_stops_also_chooses_the_weights(metric, mean, tmp_path, monkeypatch):
    """Where BLEU is higher, the loss is higher too."""
    best = 3.0 - mean
    found = [{"loss": 3.0, "bleu": bleu} for bleu in (9.0, 1.0, 1.0)]
    found += [{"loss": mean, "bleu": 5.0 * mean}, {"loss": best, "bleu": 5.0 * best}]
    validated = iter(found)
    monkeypatch.setattr(Training, "validate", lambda _: next(validated))
    stored = train(out=tmp_path, **SMALL | RECURRENT | {"metric": metric})
    assert stored["loss"] == (2.0 if metric == "bleu" else 1.0)
    assert read_log(tmp_path)[-1]["chosen"] == (
        "mean of the last checkpoints" if stored["loss"] == mean else "best checkpoint"
    )


def test_weights_that_overflow_in_an_update_stop_the_training_at_its_validation(tmp_path, monkeypatch):
    """The update's own loss is from before: on some processors the next one is the first that is not finite."""

    def overflow(training, _):
        next(training.model.parameters()).data.fill_(float("nan"))
        return 1.0, 1

    monkeypatch.setattr(Training, "_update", overflow)
    with pytest.raises(AttnscopeError, match="the validation loss of update 4 is nan: reduce learning_rate"):
        train(out=tmp_path, **SMALL | RECURRENT)


@contextmanager
def no_file_above(size):
    """As on a full disk, the system itself refuses to write on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_checkpoint_before(unbroken, tmp_path):
    train(out=tmp_path, **SMALL | RECURRENT | {"updates": 4})
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "checkpoints" / "00000004").iterdir()}
    for size in (sizes["model.safetensors"] // 2, (sizes["model.safetensors"] + max(sizes.values())) // 2):
        with (
            no_file_above(size),
            pytest.raises(
                AttnscopeError, match=r"cannot write the checkpoint of update 8 .* Earlier checkpoints are complete"
            ),
        ):
            train(out=tmp_path, **SMALL, **RECURRENT)
        assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["00000004"]
    train(out=tmp_path, **SMALL, **RECURRENT)
    assert same(weights(tmp_path), weights(unbroken["recurrent"]))


class TestDamage:
    """Of a training that was stopped after update 8, with checkpoints of 4 and 8."""

    @pytest.fixture(scope="class")
    @classmethod
    def stopped_once(cls, tmp_path_factory):
        def stop(told):
            if told.details["update"] == 10:
                raise Stopped

        folder = tmp_path_factory.mktemp("stopped")
        with pytest.raises(Stopped):
            train(out=folder, progress=stop, **SMALL, **RECURRENT)
        return folder

    @pytest.fixture
    def stopped(self, stopped_once, tmp_path):
        return shutil.copytree(stopped_once, tmp_path / "stopped")

    @pytest.mark.parametrize("name", ["optimizer.safetensors", "state.json"])
    def test_of_the_last_checkpoint_costs_its_updates_alone(self, name, stopped, unbroken, caplog):
        file = stopped / "checkpoints" / "00000008" / name
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
        train(out=stopped, **SMALL, **RECURRENT)
        assert "update 8" in caplog.text
        assert "resumes from update 4" in caplog.text
        assert same(weights(stopped), weights(unbroken["recurrent"]))

    @pytest.mark.parametrize("name", ["tokenizer.json", "log.jsonl"])
    def test_of_another_file_is_mended(self, name, stopped, unbroken, caplog):
        (stopped / name).write_bytes(b"")
        train(out=stopped, **SMALL, **RECURRENT)
        assert f"{name} is damaged and will be recomputed" in caplog.text
        assert same(weights(stopped), weights(unbroken["recurrent"]))
        if name != "log.jsonl":
            assert (stopped / name).read_bytes() == (unbroken["recurrent"] / name).read_bytes()

    def test_of_a_finished_model_is_mended_from_its_checkpoints(self, unbroken, tmp_path):
        folder = tmp_path / "copy"
        shutil.copytree(unbroken["recurrent"], folder)
        (folder / "model.safetensors").write_bytes(b"")
        train(out=folder, **SMALL, **RECURRENT)
        assert same(weights(folder), weights(unbroken["recurrent"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates": 8}, "contains a training of 12 updates; found updates = 8"),
        ({"schedule": "noam"}, "contains a training with schedule = cosine; found noam"),
        ({"updates": 13}, "13 and 0 change the learning rate of update 5"),
        ({"learning_rate": 0.1}, r"contains a training with learning_rate = 0\.004; found 0\.1"),
    ],
)
def test_updates_that_are_done_are_not_changed(settings, message, unbroken):
    before = (unbroken["recurrent"] / "config.yaml").read_bytes()
    with pytest.raises(AttnscopeError, match=message):
        train(out=unbroken["recurrent"], **SMALL | RECURRENT | settings)
    assert (unbroken["recurrent"] / "config.yaml").read_bytes() == before


def test_a_loss_that_is_no_number_stops_the_training(tmp_path, monkeypatch):
    with OwnedFolder(tmp_path, "train") as folder:
        training = Training(TrainConfig(**SMALL, **RECURRENT), folder, Processes())
        weight = next(training.model.parameters())
        monkeypatch.setattr("attnscope_lineage.training.summed_loss", lambda *_, **__: weight.sum() * torch.nan)
        with pytest.raises(AttnscopeError, match=r"the loss of update 1 is nan: reduce learning_rate \(now 0\.002\)"):
            training.run()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lable_smoothing: 0.1", "unknown setting 'lable_smoothing': did you mean 'label_smoothing'?"),
        ("dropout: 1.5", "dropout is 1.5: Input should be less than 1"),
        ("heads: two", "heads is 'two': Input should be a valid integer"),
        ("model: rnn", "model is 'rnn'; expected one of 'transformer', 'recurrent', 'masked-lm'"),
        ("- a list", "contains a list; expected settings"),
        ("a: b: c", "is not YAML: mapping values are not allowed here"),
        ("target: b.txt", "found target without source: set both"),
        ("r_drop: 5\ndropout: 0", "r_drop is 5 and dropout is 0, so both passes are equal"),
        ("valid_source: a.txt\nvalid_target: b.txt", "found valid_source without source: set both"),
        ("source: a.txt\ntarget: b.txt\nvalid_target: b.txt", "found valid_target without valid_source: set both"),
        ("attention: dot", "'attention' applies to model 'recurrent', but the model is 'transformer'"),
        (
            "model: recurrent\nlayers: 2",
            "'layers' applies to model 'transformer' and 'masked-lm', but the model is 'recurrent'",
        ),
    ],
)
def test_wrong_settings_are_named(text, message, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(AttnscopeError) as caught:
        read_config(file)
    assert message in str(caught.value)


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


def test_a_log_is_read_while_a_training_takes_lines_off_it(tmp_path, monkeypatch):
    place, seen = OwnedFolder._place, []

    def placed(folder, path, name):
        monkeypatch.setattr(checkpoints, "manifest_of", lambda _: before)  # read in the moment before, the rest now
        seen.append(read_log(tmp_path))
        place(folder, path, name)
        seen.append(read_log(tmp_path))

    with OwnedFolder(tmp_path, "train") as folder:
        log = Log(folder)
        for update in (10, 20):
            log.write(update, loss=1.0)
        log.close()
        folder.write({}, growing=[LOG])
        before = manifest_of(tmp_path)
        monkeypatch.setattr(OwnedFolder, "_place", placed)
        Log(folder, 10).close()
    assert [[line["update"] for line in lines] for lines in seen] == [[10, 20], [10]]


CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_our_own_settings_are_settings(path):
    config = read_config(path)
    assert config.source or config.text
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_other_texts_than_those_of_the_folder_are_rejected(tmp_path):
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"a {word} b\n" for word in "abcdefghijklmnopqrstuvwxyz" * 4))
    texts = {side: tmp_path / side for side in ("source", "target")}
    settings = {name: value for name, value in SMALL.items() if not name.startswith("task")} | RECURRENT
    train(out=tmp_path / "out", **texts, **settings | {"updates": 4})
    changed = (tmp_path / "source").read_text().replace("a z b", "b z a", 1)
    (tmp_path / "source").write_text(changed)
    with pytest.raises(AttnscopeError, match="the texts differ from those of the training in"):
        train(out=tmp_path / "out", **texts, **settings)


def test_pairs_that_are_left_out_are_reported(tmp_path, caplog):
    lines = ["a b c"] * 40 + ["", "a b c d e f g h"]
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in [*lines, *["a b"] * 9]))
    settings = {name: value for name, value in SMALL.items() if not name.startswith("task")} | RECURRENT
    settings |= {"longest": 7, "updates": 2, "vocabulary": 300}
    texts = {side: tmp_path / side for side in ("source", "target")}
    train(out=tmp_path / "out", **texts, **settings)
    assert "dropped pairs: 1 both empty, 1 too long" in caplog.messages
    assert read_log(tmp_path / "out")[0] == {"update": 0, "left_out": {"both empty": 1, "too long": 1}}


def test_a_target_without_spaces_wants_a_tokenizer_of_bleu(tmp_path):
    (tmp_path / "en").write_text("I am a cat.\n" * 20)
    (tmp_path / "ja").write_text("吾輩は猫である。\n" * 20)
    files = {"source": tmp_path / "en", "target": tmp_path / "ja", "vocabulary": 300}
    with pytest.raises(AttnscopeError, match=r"no spaces between words.*--bleu-tokenizer"):
        read_data(read_config(**files))
    assert len(read_data(read_config(**files, bleu_tokenizer="char")).valid) == 2


@pytest.mark.parametrize("name", ["task_pairs", "task_longest"])
def test_settings_of_the_generated_task_are_rejected_with_a_text(name, tmp_path):
    with pytest.raises(AttnscopeError, match=f"{name} applies to the generated task only, but found text"):
        read_config(model="masked-lm", text=tmp_path / "text", **{name: 300})


def test_a_file_without_a_setting_trains_nothing(tmp_path):
    for text in ("", "# updates: 10\n"):
        (tmp_path / "settings.yaml").write_text(text)
        with pytest.raises(AttnscopeError, match=r"is empty; expected one 'name: value' per line, or \{\}"):
            read_config(tmp_path / "settings.yaml")
    (tmp_path / "settings.yaml").write_text("{}")
    assert read_config(tmp_path / "settings.yaml") == read_config()
