"""A comparison says what independent computation says, does nothing twice, and goes on where it was stopped."""

import json
import shutil

import numpy as np
import pytest
import xarray as xr
from sacrebleu.metrics.bleu import BLEU
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.lineage import compare as held_out
from attnscope.lineage import compare as outputs
from attnscope.lineage.config import read_config
from attnscope.lineage.data import encode_lines
from attnscope.store.folder import OwnedFolder
from tests.comparison.small_systems import SMALL

CONFIGS = {name: read_config(**SMALL, attention=name) for name in ("none", "additive")}
OPTIONS = {"beams": 1, "resamples": 40, "threads": 1}


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module", autouse=True)
def _few_sentences():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "HELD_OUT", 60)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def tree(out):
    return attnscope.compare(CONFIGS, out=out, **OPTIONS)


def test_bleu_is_that_of_the_written_files(tree, out):
    references = lines(out / "text" / "reference.txt")
    for name in CONFIGS:
        made = lines(out / "translations" / f"{name}.txt")
        assert len(made) == len(references) == 60
        expected = BLEU().corpus_score(made, [references]).score
        assert float(tree["scores"]["score"].sel(system=name, metric="BLEU")) == pytest.approx(expected)


def test_bleu_by_length_is_that_of_the_sentences_of_that_length(tree, out):
    scores = tree["scores"].to_dataset()
    sources, references = lines(out / "text" / "source.txt"), lines(out / "text" / "reference.txt")
    made = lines(out / "translations" / "additive.txt")
    assert scores["bucket"].values.tolist() == ["1-2", "3-4", "5-6", "7-8", "9-10", "11+"]
    for low, bucket in zip(range(1, 13, 2), scores["bucket"].values, strict=True):
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
    found = attnscope.compare([folder], out=tmp_path / "out", **OPTIONS | {"resamples": 0})
    tokens = encode_lines(AutoTokenizer.from_pretrained(folder), lines(tmp_path / "out" / "text" / "source.txt"))
    assert found["scores"]["sentences_cut"].item() == sum(len(line) > 9 for line in tokens) > 0


def test_only_attention_is_aligned(tree):
    scores, alignment = tree["scores"].to_dataset(), tree["alignment"].to_dataset()
    assert np.isnan(scores["alignment_error_rate"].values).tolist() == [True, False]
    assert np.isnan(alignment["weights"].sel(system="none")).all()
    np.testing.assert_allclose(alignment["weights"].sel(system="additive").sum("source_word"), 1)
    # every target word has one source word
    assert alignment["gold"].sum("source_word").values.tolist() == [1] * alignment.sizes["target_word"]


def test_nothing_is_done_twice(tree, out, monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(outputs, "train", never)
    monkeypatch.setattr(outputs, "translate_lines", never)
    again = attnscope.compare(CONFIGS, out=out, **OPTIONS)
    xr.testing.assert_identical(again["scores"].to_dataset(), tree["scores"].to_dataset())


def test_other_beams_are_translated_again_and_not_trained(tree, out, monkeypatch, tmp_path):
    calls = []
    real = outputs.translate_lines

    def counted(*arguments, **options):
        calls.append(options["beams"])
        return real(*arguments, **options)

    monkeypatch.setattr(outputs, "train", None)
    monkeypatch.setattr(outputs, "translate_lines", counted)
    folders = [out / "systems" / name for name in CONFIGS]  # taken as they are, into another folder
    found = attnscope.compare(folders, out=tmp_path, **OPTIONS | {"beams": 2, "resamples": 0})
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
        attnscope.compare(CONFIGS, out=tmp_path, progress=stop, **OPTIONS)
    real, trained = outputs.train, []

    def counted(config, folder, **options):
        trained.append(folder.name)
        return real(config, folder, **options)

    monkeypatch.setattr(outputs, "train", counted)
    attnscope.compare(CONFIGS, out=tmp_path, **OPTIONS)
    assert trained == ["additive"]
    for name in CONFIGS:
        assert lines(tmp_path / "translations" / f"{name}.txt") == lines(out / "translations" / f"{name}.txt")


@pytest.mark.parametrize("name", ["manifest", "scores"])
def test_no_name_is_that_of_a_file_of_the_comparison(name, out, tree, tmp_path):
    folder = shutil.copytree(out / "systems" / "none", tmp_path / name)
    found = attnscope.compare([folder], out=tmp_path / "out", **OPTIONS | {"resamples": 0})
    assert found["scores"]["system"].values.tolist() == [name]
    with OwnedFolder(tmp_path / "out", "compare") as written:
        assert not written.damaged()


def test_translations_that_were_damaged_are_made_again(tree, out, tmp_path, caplog):
    copied = shutil.copytree(out, tmp_path / "out")
    file = copied / "translations" / "additive.txt"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"e", b"a", 1))
    again = attnscope.compare(CONFIGS, out=copied, **OPTIONS)
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
        attnscope.compare(**{"systems": CONFIGS, "out": tmp_path / "out", **arguments})
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
        attnscope.compare(both, out=tmp_path / "out")
    with pytest.raises(AttnscopeError, match=r"one and task were not validated on the same text"):
        attnscope.compare({"one": both["one"], "task": CONFIGS["none"]}, out=tmp_path / "out")
