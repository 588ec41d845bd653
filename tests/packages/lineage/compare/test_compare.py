"""A comparison says what independent computation says, does nothing twice, and goes on where it was stopped."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from types import GenericAlias

import numpy as np
import pytest
import xarray as xr
from sacrebleu.metrics.bleu import BLEU
from scipy import stats
from transformers import AutoTokenizer

import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.store.folder import OwnedFolder
from attnscope_lineage import comparison as compare_module
from attnscope_lineage.checkpoints import read_log
from attnscope_lineage.comparison import (
    System,
    gradient_shares,
    learning_curves,
    length_limits,
    read_systems,
    read_test_text,
    training_effort,
)
from attnscope_lineage.config import config_bytes, read_config
from attnscope_lineage.data import encode_lines
from attnscope_lineage.parallel_text import ParallelText, TaskText
from attnscope_lineage.scores import report
from tests.command_processes import Started
from tests.packages.lineage.compare.small_systems import SMALL

CONFIGS = {name: read_config(**SMALL, attention=name) for name in ("none", "additive")}
OPTIONS = {"beams": 1, "resamples": 40, "threads": 1}


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module", autouse=True)
def _few_sentences():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_module, "HELD_OUT", 40)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def tree(out):
    return attnscope_lineage.compare(CONFIGS, out=out, **OPTIONS)


def test_gradients_by_source_position_are_those_of_the_written_equations(tree, out):
    """Autograd through the model's own code, against the float64 equations of `walk`."""
    gradients = tree["gradients"].to_dataset()
    forward_only = f"none{compare_module.FORWARD}"
    assert gradients["system"].values.tolist() == ["none", forward_only, "additive"]
    assert np.allclose(gradients["share"].sum("tenth"), 1)
    assert (gradients["lower"] <= gradients["share"]).all()
    pairs = zip(lines(out / "text" / "source.txt"), lines(out / "text" / "reference.txt"), strict=True)
    source, target = max(pairs, key=lambda pair: len(pair[0].split()))
    for name in CONFIGS:
        loaded = load_model(out / "systems" / name, device="cpu")
        (shares,) = gradient_shares(loaded, ParallelText([source], [target]))
        norms = attnscope_lineage.walk(loaded.model, source, targets=target, tokenizer=loaded.tokenizer)["gradient"][
            :-1
        ]
        tenths = [norms[[i for i in range(len(norms)) if 10 * i // len(norms) == k]].sum() for k in range(10)]
        assert np.allclose(shares, np.array(tenths) / norms.sum(), atol=1e-5)


def test_bleu_is_that_of_the_written_files(tree, out):
    references = lines(out / "text" / "reference.txt")
    for name in CONFIGS:
        made = lines(out / "translations" / f"{name}.txt")
        assert len(made) == len(references) == 40
        expected = BLEU().corpus_score(made, [references]).score
        assert float(tree["scores"]["score"].sel(system=name, metric="BLEU")) == pytest.approx(expected)


def test_bleu_by_length_is_that_of_the_sentences_of_that_length(tree, out):
    scores = tree["scores"].to_dataset()
    sources, references = lines(out / "text" / "source.txt"), lines(out / "text" / "reference.txt")
    made = lines(out / "translations" / "additive.txt")
    assert scores["bucket"].values.tolist() == ["1-2", "3-4", "5-6", "7-8", "9+"]
    for low, bucket in zip(range(1, 11, 2), scores["bucket"].values, strict=True):
        chosen = [i for i, source in enumerate(sources) if low <= len(source.split()) <= low + 1]
        expected = BLEU().corpus_score([made[i] for i in chosen], [[references[i] for i in chosen]]).score
        found = scores["score_by_length"].sel(system="additive", metric="BLEU", bucket=bucket)
        assert float(found) == pytest.approx(expected)
        assert int(scores["sentences"].sel(bucket=bucket)) == len(chosen)


def test_parameters_are_counted_by_hand(tree, out):
    embedding, encoder, decoder = (SMALL[f"{name}_width"] for name in ("embedding", "encoder", "decoder"))
    vocabulary = len(json.loads((out / "systems" / "none" / "tokenizer.json").read_text())["model"]["vocab"])
    both = 2 * encoder
    fixed = (
        vocabulary * embedding  # once: the output layer is tied to it
        + 2 * 3 * (embedding * encoder + encoder * encoder + 2 * encoder)  # encoder, three gates, two ways
        + both * decoder + decoder  # first state
        + 3 * ((embedding + both) * decoder + decoder * decoder + 2 * decoder)
        + (decoder + both + embedding) * embedding + embedding  # readout
    )  # fmt: skip
    score = decoder * decoder + decoder + both * decoder + decoder  # W_1 with its bias, W_2, v
    assert tree["scores"]["parameters"].values.tolist() == [fixed, fixed + score]


def test_sentences_that_were_cut_are_counted(tree, out, monkeypatch, tmp_path):
    assert tree["scores"]["sentences_cut"].values.tolist() == [0, 0]
    folder = shutil.copytree(out / "systems" / "none", tmp_path / "none")
    (folder / "manifest.json").unlink()  # it is now what anybody may have written
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"model_max_length": 9}))
    found = attnscope_lineage.compare([folder], out=tmp_path / "out", **OPTIONS | {"resamples": 0})
    tokens = encode_lines(AutoTokenizer.from_pretrained(folder), lines(tmp_path / "out" / "text" / "source.txt"))
    assert found["scores"]["sentences_cut"].item() == sum(len(line) > 9 for line in tokens) > 0


def test_only_attention_is_aligned(tree):
    scores, alignment = tree["scores"].to_dataset(), tree["alignment"].to_dataset()
    assert np.isnan(scores["alignment_error_rate"].values).tolist() == [True, False]
    assert np.isnan(alignment["weights"].sel(system="none")).all()
    np.testing.assert_allclose(alignment["weights"].sel(system="additive").sum("source_word"), 1)
    # every target word has one source word
    assert alignment["gold"].sum("source_word").values.tolist() == [1] * alignment.sizes["target_word"]


def test_nothing_is_done_twice_and_lengths_that_no_sentence_has_are_left_out(tree, out, monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(compare_module, "train", never)
    monkeypatch.setattr(compare_module, "translate_lines", never)
    again = attnscope_lineage.compare(CONFIGS, out=out, **OPTIONS, by_length=[3, 50, 100])["scores"].to_dataset()
    xr.testing.assert_identical(again.score, tree["scores"].score)
    assert again["bucket"].values.tolist() == ["1-3", "4-50"]  # and no "51-100"
    assert int(again["sentences"].sum()) == int(tree["scores"].to_dataset()["sentences"].sum())


def test_other_beams_are_translated_again_and_not_trained(tree, out, monkeypatch, tmp_path):
    calls = []
    real = compare_module.translate_lines

    def counted(*arguments, **options):
        calls.append(options["beams"])
        return real(*arguments, **options)

    monkeypatch.setattr(compare_module, "train", None)
    monkeypatch.setattr(compare_module, "translate_lines", counted)
    folders = [out / "systems" / name for name in CONFIGS]  # taken as they are, into another folder
    found = attnscope_lineage.compare(folders, out=tmp_path, **OPTIONS | {"beams": 2, "resamples": 0})
    assert calls == [2, 2]
    assert found["scores"]["system"].values.tolist() == ["none", "additive"]
    assert np.isnan(found["scores"]["lower"]).all()


class Stopped(Exception):  # noqa: N818 says what it is
    pass


def test_stopped_and_resumed_is_unbroken(tree, out, tmp_path, monkeypatch):
    def stop(step):
        if step.name == "train additive":
            raise Stopped

    with pytest.raises(Stopped):
        attnscope_lineage.compare(CONFIGS, out=tmp_path, progress=stop, **OPTIONS)
    real, trained = compare_module.train, []

    def counted(config, folder, **options):
        trained.append(folder.name)
        return real(config, folder, **options)

    monkeypatch.setattr(compare_module, "train", counted)
    attnscope_lineage.compare(CONFIGS, out=tmp_path, **OPTIONS)
    assert trained == ["additive"]
    for name in CONFIGS:
        assert lines(tmp_path / "translations" / f"{name}.txt") == lines(out / "translations" / f"{name}.txt")


@pytest.mark.parametrize("name", ["manifest", "scores"])
def test_no_name_is_that_of_a_file_of_the_comparison(name, out, tree, tmp_path):
    folder = shutil.copytree(out / "systems" / "none", tmp_path / name)
    found = attnscope_lineage.compare([folder], out=tmp_path / "out", **OPTIONS | {"resamples": 0})
    assert found["scores"]["system"].values.tolist() == [name]
    with OwnedFolder(tmp_path / "out", "compare") as written:
        assert not written.damaged()


def test_translations_that_were_damaged_are_made_again(tree, out, tmp_path, caplog):
    copied = shutil.copytree(out, tmp_path / "out")
    file = copied / "translations" / "additive.txt"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"e", b"a", 1))
    again = attnscope_lineage.compare(CONFIGS, out=copied, **OPTIONS)
    assert file.read_bytes() == whole
    assert "translations of additive are damaged" in caplog.text
    xr.testing.assert_equal(again["scores"]["score"], tree["scores"]["score"])


DOT = read_config(model="recurrent", attention="dot", encoder_width=64, decoder_width=64)
NO_TEXT = read_config(source="nowhere.en", target="nowhere.de")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"systems": {"a/b": CONFIGS["none"]}}, "'a/b' cannot be part of a file name"),
        ({"systems": {"..": CONFIGS["none"]}}, "'..' cannot be part of a file name"),
        ({"systems": {"\x1b[2J": CONFIGS["none"]}}, "cannot be part of a file name"),
        ({"systems": {"a": read_config(model="masked-lm")}}, "masked language model"),
        ({"systems": {"a": CONFIGS["none"], "b": DOT}}, "b: dot-product attention .* set decoder_width to 128"),
        ({"systems": {"a": CONFIGS["none"], "b": NO_TEXT}}, "b: nowhere.en: no such file"),
        ({"join": 0}, "join .* is 0"),
        ({"tokenize": "mose"}, "tokenize is 'mose'"),
        ({"by_length": [5, 3]}, "expected positive, increasing"),
        ({"resamples": -1}, "resamples .* is -1"),
        ({"targets": "a dog"}, "found only one of texts and targets"),
    ],
)
def test_what_is_wrong_is_reported_before_anything_is_trained(arguments, message, tmp_path):
    with pytest.raises(AttnscopeError, match=message):
        attnscope_lineage.compare(**{"systems": CONFIGS, "out": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


def test_texts_that_differ_are_rejected(tmp_path):
    for name in ("one", "other"):
        for side in ("source", "target"):
            (tmp_path / f"{name}.{side}").write_text(f"{name} {side}\n" * 20)
    both = {
        name: read_config(source=tmp_path / f"{name}.source", target=tmp_path / f"{name}.target")
        for name in ("one", "other")
    }
    with pytest.raises(AttnscopeError, match=r"one and other were not validated on the same text \(2 pairs"):
        attnscope_lineage.compare(both, out=tmp_path / "out")
    with pytest.raises(AttnscopeError, match=r"one and task were not validated on the same text"):
        attnscope_lineage.compare({"one": both["one"], "task": CONFIGS["none"]}, out=tmp_path / "out")


def test_the_text_is_joined_as_the_systems_were_trained():
    systems = [System("a", Path("a"), CONFIGS["none"].model_copy(update={"join": 3}))]
    text, plain = read_test_text(systems), read_test_text(systems, join=1)
    assert isinstance(text, TaskText)
    assert len(plain) == 40  # three such texts would be 120; joined by 1 to 3, about 40 are left again
    assert 25 < len(text) < 55
    assert max(len(line.split()) for line in plain.source) <= 10 < max(len(line.split()) for line in text.source)


def test_a_text_of_the_user_stays_as_it_is():
    systems = [System("a", Path("a"), CONFIGS["none"].model_copy(update={"join": 3}))]
    given = ["one", "two", "three"], ["1", "2", "3"]
    assert read_test_text(systems, *given).source == given[0]
    assert len(read_test_text(systems, *given, join=3)) < len(given[0])


def test_names_are_unique_also_where_case_does_not_count(tmp_path):
    for folder, name in (("a", "small"), ("b", "Small")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yaml").write_bytes(config_bytes(CONFIGS["none"]))
    found = read_systems([tmp_path / "a" / "small.yaml", tmp_path / "b" / "Small.yaml"], tmp_path / "out")
    assert [system.name for system in found] == ["small", "Small-2"]
    assert found[1].folder == tmp_path / "out" / "systems" / "Small-2"


def test_a_log_that_was_damaged_gives_no_curve(tree, out, tmp_path):
    copied = shutil.copytree(out / "systems" / "none", tmp_path / "none")
    log = copied / "log.jsonl"
    log.write_text(log.read_text().replace("1", "7", 1))
    with pytest.raises(AttnscopeError, match=r"log\.jsonl is not what was written"):
        attnscope_lineage.compare([copied], out=tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize("longest", [1, 3, 7, 12, 33, 60, 61, 130, 1000])
def test_limits_of_length_are_round_few_and_leave_no_empty_end(longest):
    lengths = range(1, longest + 1)
    limits = length_limits(["w " * n for n in lengths])
    assert 1 <= len(limits) <= 5
    assert len({b - a for a, b in pairwise([0, *limits])}) == 1
    assert limits[-1] < longest or longest == 1
    assert length_limits(["x" * n for n in lengths], "characters") == limits


def test_curves_of_different_lengths_and_of_no_log(tmp_path):
    rows = [
        {"update": 2, "loss": 3.0, "tokens_per_second": 10.0, "tokens": 20, "seconds": 2.0},
        {"update": 2, "valid_loss": 2.5, "valid_bleu": 1.5},
        {"update": 4, "loss": 2.0, "tokens_per_second": 30.0, "tokens": 60, "seconds": 3.0},
        {"update": 4, "valid_loss": 1.5, "valid_bleu": 9.5},
    ]
    for name, count in (("long", 4), ("short", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
    curves = learning_curves({name: [tmp_path / name] for name in ("short", "long", "none")})
    np.testing.assert_array_equal(curves["bleu"], [[1.5, np.nan], [1.5, 9.5], [np.nan, np.nan]])
    np.testing.assert_array_equal(curves["tokens"][1], [20, 60])
    assert training_effort(tmp_path / "long") == {
        "training_tokens_per_second": 20.0,
        "training_tokens": 60.0,
        "training_seconds": 3.0,
    }


def test_curves_over_seeds_are_those_of_the_logs_with_student_s_intervals(tmp_path):
    found = attnscope_lineage.compare(CONFIGS, out=tmp_path, seeds=2, **OPTIONS | {"resamples": 0})
    curves = found["curves"].to_dataset()
    folders = [[f"{name}{end}" for end in ("", ", seed 1")] for name in CONFIGS]
    logs = [[read_log(tmp_path / "systems" / folder) for folder in several] for several in folders]
    losses = np.array([[[row["valid_loss"] for row in log if "valid_loss" in row] for log in of] for of in logs])
    assert len({*losses.ravel()}) == losses.size == 8  # every seed is another training
    np.testing.assert_allclose(curves["loss"], losses.mean(1))
    means, pairs = losses.mean(2), losses.mean(2)[1] - losses.mean(2)[0]
    for values, name in ((means[0], "mean_loss"), (pairs, "difference")):
        ends = stats.t.interval(0.95, 1, values.mean(), stats.sem(values))
        at = curves.isel(system=int(name == "difference"))
        np.testing.assert_allclose([at[f"{name}_lower"], at[f"{name}_upper"]], ends)
    (sentence,) = (line for line in report(found).finding.sentences if "sooner" in line)
    low, high = (float(curves[f"difference_{end}"][1]) for end in ("lower", "upper"))
    assert sentence.startswith(
        "Neither none nor additive" if low <= 0 <= high else "none learns" if low > 0 else "additive learns"
    )
    assert "2 seeds" in sentence
    with pytest.raises(AttnscopeError, match="none is trained already"):
        attnscope_lineage.compare([tmp_path / "systems" / "none"], out=tmp_path / "again", seeds=2, **OPTIONS)


class Forked(Started):
    """What `Popen` starts as `python -m attnscope`, as a fork of a process that has imported PyTorch."""

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, words, *, stdout, **_):
        super().__init__(*words[3:])
        self.wait, self.terminate = self._process.join, self._process.terminate
        self.told = Path(stdout.name)

    def poll(self):
        code = super().poll()
        if code is not None:
            self.told.write_text("".join(file.read_text(encoding="utf-8") for file in self._files))
        return code


def test_trainings_at_once_are_those_one_after_another(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_module, "threads_of_one", lambda: 2)
    monkeypatch.setattr(compare_module, "train", None)  # each in a process of its own
    monkeypatch.setattr(compare_module.subprocess, "Popen", Forked)
    shares = []
    options = OPTIONS | {"threads": None, "device": "cpu", "resamples": 0}
    found = attnscope_lineage.compare(
        CONFIGS, out=tmp_path / "out", progress=lambda at: shares.append((at.name, at.share)), **options
    )
    for name in ("loss", "bleu", "updates", "tokens"):
        np.testing.assert_array_equal(found["curves"][name], tree["curves"][name])
    assert shares[0][0] == "train none, additive"
    assert [share for _, share in shares] == sorted(share for _, share in shares)
    diverging = {name: config.model_copy(update={"learning_rate": 1e30}) for name, config in CONFIGS.items()}
    with pytest.raises(AttnscopeError, match=r"(none|additive): .*loss of update \d+ is (nan|inf)"):
        attnscope_lineage.compare(diverging, out=tmp_path / "diverging", **options)


def test_position_schemes_are_systems_that_differ_in_them_alone(tmp_path):
    systems = read_systems(["rope", "learned"], tmp_path)
    rope, learned = (system.config.settings() for system in systems)
    assert {name for name in rope if rope[name] != learned[name]} == {"positions"}
    assert [system.name for system in systems] == [rope["positions"], learned["positions"]]


def test_the_line_requested_is_shown():
    text = ParallelText(["w " * 30, "w w", "w " * 24], ["x", "x", "x"])
    assert compare_module.shown_pair(text, None) == 2
    assert compare_module.shown_pair(text, 2) == 1
    with pytest.raises(AttnscopeError, match="there is no line 4: the text has lines 1 to 3"):
        compare_module.shown_pair(text, 4)
