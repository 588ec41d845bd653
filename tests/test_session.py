"""A session loads its model once, and its verbs give what they give apart."""

from dataclasses import replace

import pytest
import torch
import xarray as xr
from transformers import BertConfig, BertForMaskedLM

import attnscope
from attnscope import AttnscopeError
from attnscope.capture import load, verify
from attnscope.explanation.study import Study
from attnscope.measure.texts import TextReader
from attnscope.read import sources, windows

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again.", "Ships wait for it."]


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A random model of four heads, which take `explain` a third of the time of the bundled model's twelve."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, initializer_range=0.2, **sizes)
    place = tmp_path_factory.mktemp("model")
    BertForMaskedLM(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def test_two_verbs_load_once_and_give_what_they_give_apart(folder, monkeypatch):
    loads = []

    def counted(*given):
        loads.append(given)
        return from_checkpoint(*given)

    from_checkpoint = load.from_checkpoint
    monkeypatch.setattr(load, "from_checkpoint", counted)
    session = attnscope.Session(folder, (text for text in TEXTS), window=16, seed=3)
    scanned, explained = session.scan(band=4), session.explain(seed=0)
    assert len(loads) == 1
    xr.testing.assert_identical(scanned, attnscope.scan(folder, TEXTS, window=16, seed=3, band=4))
    apart = attnscope.explain(folder, TEXTS, window=16)
    xr.testing.assert_identical(explained, apart)
    assert explained.attrs["signature"] == apart.attrs["signature"]


def test_an_option_that_a_verb_lacks_is_rejected():
    session = attnscope.Session(texts=TEXTS, targets=TEXTS)
    with pytest.raises(attnscope.AttnscopeError, match=r"attnscope\.roles has no targets, which this session has"):
        session.roles()


def test_a_model_is_verified_once_until_it_changes(folder, monkeypatch):
    checks, verified = [], verify._verified

    def counted(*given, **options):
        checks.append(given)
        return verified(*given, **options)

    monkeypatch.setattr(verify, "_verified", counted)
    session = attnscope.Session(folder, TEXTS, window=16)
    for verb in (session.scan, session.explain, session.scan):
        verb()
    assert len(checks) == 1
    with torch.no_grad():
        next(session.model.model.parameters()).mul_(1.5)
    session.scan()
    assert len(checks) == 2
    with session.model.model.base_model.register_forward_hook(lambda *_: None):
        session.scan()
    assert len(checks) == 3


def test_a_second_scan_costs_its_passes_alone(folder):
    session = attnscope.Session(folder, TEXTS, window=16)
    passes = []
    session.model.model.base_model.register_forward_hook(lambda *_: passes.append(1))
    first = session.scan()
    before = len(passes)
    xr.testing.assert_identical(session.scan(band=4).max_weight, first.max_weight)
    assert len(passes) == before + 1


def test_verbs_of_a_session_open_everything_once(folder, monkeypatch, tmp_path):
    """Loads, checks, readings of the text and tokenisations of its three verbs, whose results are those apart."""
    counts = {}

    def count(owner, name):
        function = getattr(owner, name)

        def counted(*given, **options):
            counts[name] = counts.get(name, 0) + 1
            return function(*given, **options)

        monkeypatch.setattr(owner, name, counted)

    path = tmp_path / "text.txt"
    path.write_text(" ".join(TEXTS * 20))
    options = {"ablations": ["zero"], "steps": 0}
    apart = attnscope.intervene(folder, path, window=16, limit=8, **options)
    for owner, name in (
        (load, "from_checkpoint"),
        (verify, "_verified"),
        (sources.Plain, "texts"),
        (windows, "tokenize"),
        (Study, "run"),
        (TextReader, "measure_batch"),
    ):
        count(owner, name)
    session = attnscope.Session(folder, path, window=16, limit=8)
    session.scan()
    session.explain()
    found = session.intervene(**options)
    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) == 6
    for node in ("where", "why", "effects"):
        xr.testing.assert_identical(found[node].to_dataset(), apart[node].to_dataset())
    assert found.attrs == apart.attrs


def scaled(model):
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.query.weight.mul_(3)


def unnoticed(model):
    """A change that PyTorch does not count, and that a sum in float32 does not show."""
    weight = model.bert.encoder.layer[0].attention.self.query.weight.data
    weight[[3, 4]] = 3 * weight[[4, 3]]


def hooked(model):
    model.bert.encoder.layer[0].output.register_forward_hook(lambda _, __, out: out * 2)


@pytest.mark.parametrize("change", [scaled, unnoticed, hooked])
def test_what_was_measured_before_a_model_changed_is_not_used(folder, change):
    """`where` and `why` are of the model as it is now, not as the session's scan found it."""
    options = {"ablations": ["zero"], "steps": 0}
    texts = [" ".join(TEXTS * 20)]
    session = attnscope.Session(folder, texts, window=16, limit=8)
    session.scan()
    session.explain()
    change(session.model.model)
    found = session.intervene(**options)
    apart = attnscope.intervene(replace(session.model, session=lambda: None), texts, window=16, limit=8, **options)
    for node in ("where", "why", "effects"):
        xr.testing.assert_identical(found[node].to_dataset(), apart[node].to_dataset())


def test_a_model_object_is_hashed_again_only_where_it_changed(monkeypatch):
    hashed, digest = [], load._digest
    monkeypatch.setattr(load, "_digest", lambda *given: hashed.append(given) or digest(*given))
    model = load.load_model("bundled", device="cpu", need_tokenizer=False).model
    weights = next(model.parameters())
    first = load.state_sha256(model)
    assert load.state_sha256(model) == first
    assert len(hashed) == 1
    weights.data[[0, 1]] = weights.data[[1, 0]]  # PyTorch counts no change of `data`
    assert load.state_sha256(model) != first
    with torch.no_grad():
        weights[[0, 1]] = weights[[1, 0]]
    assert load.state_sha256(model) == first
    assert len(hashed) == 3
    weights.data[7, 5] += 1e-6  # less than a float32 sum of all shows
    assert load.state_sha256(model) != first
    weights.data[7, [1, 5]] = weights.data[7, [5, 1]]
    assert load.state_sha256(model) != first
    model.config.hidden_act = "gelu_new"
    assert load.state_sha256(model) != first


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_break_after_a_verb_are_named_by_the_next_one(number):
    model = load.load_model("bundled", device="cpu")
    session = attnscope.Session(model.model, tokenizer=model.tokenizer, limit=2, window=32)
    session.scan()
    weight = next(parameter for parameter in model.model.parameters() if parameter.ndim > 1)
    weight.data[1, 1] = number
    with pytest.raises(AttnscopeError, match="NaN or infinity"):
        session.scan()
