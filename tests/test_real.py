"""Trained public models, made by scripts/real_models.py: known heads come out, and commands run."""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import published

import attnscope
from attnscope.capture.load import load_model
from attnscope.explanation.report import report

pytestmark = [pytest.mark.slow, pytest.mark.real]
TEXT = Path(attnscope.__file__).parent / "bundled/text/05-tides.txt"
REACTIONS = ["CC(=O)O.OCC>>CC(=O)OCC", "CCBr.[Na+].[OH-]>>CCO", "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1"] * 3
READ = {
    "gemma-3-270m/gemma-3-270m-q4_k_m.gguf": TEXT,
    "smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf": TEXT,
    "all-MiniLM-L6-v2": TEXT,
    "rxnfp/bert_pretrained": REACTIONS,
    "rxnfp/bert_ft": REACTIONS,
    "rxnfp/bert_ft_10k_25s": REACTIONS,
    "antiberty": list(published.ANTIBODIES),
}


@pytest.fixture(scope="module")
def real():
    folder = os.environ.get("ATTNSCOPE_REAL_MODELS")
    if folder is None:
        pytest.skip("set ATTNSCOPE_REAL_MODELS to the folder that scripts/real_models.py made")
    return Path(folder)


@pytest.mark.parametrize("name", READ)
def test_a_trained_model_is_scanned_and_explained(real, name):
    loaded = load_model(real / name)
    scanned = attnscope.scan(loaded.model, READ[name], tokenizer=loaded.tokenizer, window=32, limit=2)
    explained = attnscope.explain(loaded.model, READ[name], tokenizer=loaded.tokenizer, window=32, limit=2)
    config = loaded.model.config
    heads = config.num_hidden_layers * config.num_attention_heads
    assert scanned.sizes["layer"] * scanned.sizes["head"] == heads
    assert len(report(explained).rows) == heads


@pytest.mark.parametrize(
    ("name", "layer", "head", "sinks"),
    [("gemma-3-270m/gemma-3-270m-q4_k_m.gguf", 5, 1, 30), ("smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf", 18, 6, 100)],
)
def test_a_language_model_has_an_induction_head_a_previous_token_head_and_sinks(real, name, layer, head, sinks):
    roles = attnscope.roles(
        real / name, TEXT,
        only="induction, previous_token, first_token", window=128, limit=2, controls="initialised",
    )  # fmt: skip
    score = roles.score.sel(role="induction")
    assert score.argmax(...)["layer"] == layer
    assert score.argmax(...)["head"] == head
    assert float(score.max()) > 0.8
    assert float(roles.control_score.sel(role="induction").max()) < 0.05
    assert int((roles.score.sel(role="first_token") > 0.3).sum()) >= sinks
    assert float(roles.score.sel(role="previous_token").max()) > 0.5


def test_a_vision_transformer_looks_at_each_neighbour_and_farther_in_depth(real):
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("PIL")
    import transformers

    folder = real / "dinov2-small"
    photos = [np.asarray(photo) for photo in datasets.load_sample_images().images]
    scanned = attnscope.scan(folder, photos)
    profile = scanned.patch_profile.mean("window")
    for head, offset in {(1, 1): (0, 1), (2, 3): (0, -1), (3, 1): (1, 0), (3, 4): (-1, 0)}.items():
        of_head = profile.sel(layer=head[0], head=head[1])
        best = of_head.argmax(...)
        found = (int(of_head.row_offset[best["row_offset"]]), int(of_head.column_offset[best["column_offset"]]))
        assert found == offset
        assert float(of_head.max()) > 0.45
    distance = scanned.patch_distance.mean(("window", "head"))
    assert float(distance[6:].mean()) > float(distance[1:6].mean()) + 1
    untrained = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder)).eval()
    random = attnscope.scan(untrained, photos, tokenizer=transformers.AutoImageProcessor.from_pretrained(folder))
    assert float(random.patch_profile.mean("window").max()) < 0.1


def test_a_model_of_molecules_copies_its_source_and_reads_it(real):
    loaded = load_model(real / "annalog")
    caffeine, aspirin = "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "CC(=O)Oc1ccccc1C(=O)O"

    def loss(source: str, target: str) -> float:
        coded = [loaded.tokenizer(text, return_tensors="pt").input_ids for text in (f"<sos>{source}", target)]
        with torch.no_grad():
            return float(loaded.model(input_ids=coded[0], labels=coded[1]).loss)

    coded = loaded.tokenizer(f"<sos>{caffeine}", return_tensors="pt")
    made = loaded.model.generate(**coded, num_beams=4, max_length=100)[0]
    assert loaded.tokenizer.decode(made, skip_special_tokens=True).replace(" ", "") == caffeine
    near, far = loss(aspirin, aspirin.replace("Oc1", "Nc1")), loss(caffeine, aspirin.replace("Oc1", "Nc1"))
    assert near < 0.6
    assert far > 2 * near
    scanned = attnscope.scan(
        loaded.model, [f"<sos>{caffeine}", f"<sos>{aspirin}"], targets=[caffeine, aspirin], tokenizer=loaded.tokenizer
    )
    assert scanned.sizes["layer"] == 9
    profile = scanned.profile.mean("window")
    assert float(profile.sel(layer=2, head=5, offset=-1)) > 0.8
    assert float(profile.sel(layer=2, head=7, offset=1)) > 0.8


def test_whisper_base_writes_what_was_read_and_its_published_heads_follow_time(real, data):
    import transformers

    folder = real / "whisper-base"
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reader = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    text, samples, _ = list(published.recordings(real / "librivox"))[1]
    sound = reader(samples, sampling_rate=published.RATE, return_tensors="pt").input_features
    said = tokenizer.decode(model.generate(sound, language="en", task="transcribe")[0], skip_special_tokens=True)
    letters = str.maketrans("", "", "-., ")
    assert said.lower().translate(letters) == text.lower().translate(letters)
    if shutil.which("flite") is None:
        pytest.skip("needs flite, a speech synthesiser")
    found = published.whisper(argparse.Namespace(models=real, data=data, utterances=3), "whisper-base")
    listed = np.zeros((6, 8), bool)
    listed[tuple(np.transpose(found["listed"]))] = True
    share, shuffled = (np.mean(found[name], 0).reshape(-1) for name in ("share", "shuffled"))
    assert found["loss"] < 1
    assert published.auroc(share, listed.reshape(-1)) > 0.9
    assert (share - shuffled)[listed.reshape(-1)].min() > 0.2


def test_two_models_of_one_family_differ_where_they_were_tuned(real, tmp_path):
    runs = [tmp_path / "pretrained", tmp_path / "tuned"]
    for name, run in zip(("bert_pretrained", "bert_ft"), runs, strict=True):
        attnscope.scan(real / "rxnfp" / name, REACTIONS, out=run)
    changed, same = attnscope.diff(*runs), attnscope.diff(runs[0], runs[0])
    assert changed.tested.all()
    assert changed.changed.any()
    assert float(np.abs(same.change).max()) == 0
    assert not same.changed.any()


def test_the_published_heads_of_whisper_follow_time_and_four_others_more(real, data):
    if shutil.which("flite") is None:
        pytest.skip("needs flite, a speech synthesiser")
    found = published.whisper(argparse.Namespace(models=real, data=data, utterances=3))
    listed = np.zeros((4, 6), bool)
    listed[tuple(np.transpose(found["listed"]))] = True
    share, shuffled = (np.mean(found[name], 0) for name in ("share", "shuffled"))
    assert published.auroc(share.reshape(-1), listed.reshape(-1)) > 0.65
    assert (share - shuffled)[listed].min() > 0.1
    assert min(share[1, 5], share[2, 1], share[2, 4], share[3, 5]) > share[listed].max()


def test_cross_attention_of_whisper_is_eager_attention(real):
    import transformers

    folder = real / "whisper-tiny.en"
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reader = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    samples = np.random.default_rng(0).normal(0, 0.1, 2 * published.RATE).astype(np.float32)
    weights, ids, _ = published.attended(model, tokenizer, reader, samples, " A test of time.")
    start = tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
    sound = reader(samples, sampling_rate=published.RATE, return_tensors="pt").input_features
    with torch.no_grad():
        given = model(sound, decoder_input_ids=torch.tensor([start + ids]), output_attentions=True).cross_attentions
    eager = torch.cat(given)[:, :, 1 : 2 + len(ids), :100].numpy()
    assert np.allclose(weights, eager / eager.sum(-1, keepdims=True), atol=1e-5)
