"""Every verb tells how far it has come in the same way: a name, a share that rises to 1, and what else there is."""

from functools import partial

import pytest

import attnscope
import attnscope_lineage
from attnscope.bundled import MODEL
from attnscope.support.progress import Progress
from attnscope_lineage import comparison as held_out
from attnscope_lineage.config import read_config
from tests.packages.lineage.compare.small_systems import SMALL
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer

PAIRS = ["a b c", "b a"], ["b c", "a"]


def scan(_, **told):
    attnscope.scan(MODEL, ["The tide comes in twice a day."], **told)


def walk(_, **told):
    attnscope_lineage.walk(MODEL, "The tide comes in.", **told)


def translate(_, **told):
    attnscope_lineage.translate(small_model("bart"), PAIRS[0], tokenizer=small_tokenizer(), **told)


def align(folder, **told):
    (folder / "gold").write_text("1-1\n1-1\n")
    given = {"targets": PAIRS[1], "tokenizer": small_tokenizer(), "gold": folder / "gold"}
    attnscope_lineage.align(small_model("bart"), PAIRS[0], **given, **told)


def score(_, **told):
    attnscope_lineage.score({"one": PAIRS[0]}, PAIRS[1], texts=PAIRS[0], by_length=[1, 2], resamples=0, **told)


def train(folder, **told):
    attnscope_lineage.train(out=folder, **SMALL, **told)


def compare(folder, **told):
    attnscope_lineage.compare({"one": read_config(**SMALL), "two": read_config(**SMALL)}, out=folder, beams=1, **told)


def intervene(_, **told):
    texts = ["The tide comes in twice.", "It goes out again."]
    every = {"search": True, "curves": True, "forbid_first": True, "steps": 0, "ablations": ["zero"]}
    attnscope.intervene(MODEL, texts, window=16, limit=2, **every, **told)


@pytest.mark.parametrize("verb", [scan, walk, translate, align, score, train, compare, intervene])
def test_the_share_rises_to_one(verb, tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "HELD_OUT", 20)
    monkeypatch.setattr(held_out, "threads_of_one", lambda: 1)  # one training after another, in this process
    told = []
    verb(tmp_path, progress=told.append)
    shares = [at.share for at in told]
    assert all(isinstance(at, Progress) for at in told)
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == pytest.approx(1)


def test_every_layer_and_token_of_the_first_batch_is_reported():
    pair = {"clean": "the key to the", "corrupted": "the keys to the", "answer": "dog", "wrong": "king"}

    def shares_of(verb, *arguments, **settings):
        told = []
        verb(*arguments, progress=told.append, **settings)
        return [at.share for at in told]

    patch = partial(shares_of, attnscope.patch, "bundled:tasks", [pair], steps=0)
    in_one_batch = {
        "intervene": shares_of(
            attnscope.intervene, MODEL, ["The tide comes in."], steps=0, why=False, ablations=["zero"]
        ),
        "patch": patch(),
        "patch blocks": patch(what="residual"),
        "patch paths": patch(receiver="logits"),
        "generate": shares_of(attnscope.generate, "bundled:tasks", ["the dog saw"], new_tokens=4),
    }
    for name, shares in in_one_batch.items():
        assert shares == sorted(shares), name
        assert len([one for one in shares if 0 < one < 0.95]) >= 3, (name, shares)


@pytest.mark.parametrize("verb", ["generate", "patch", "intervene"])
def test_an_error_of_the_caller_s_function_stays_what_it_is(verb):
    def fail(at):
        if 0 < at.share < 0.95:
            raise ZeroDivisionError

    pair = {"clean": "the key to the", "corrupted": "the keys to the", "answer": "dog", "wrong": "king"}
    calls = {
        "generate": partial(attnscope.generate, "bundled:tasks", ["the dog saw"], new_tokens=4),
        "patch": partial(attnscope.patch, "bundled:tasks", [pair], steps=0),
        "intervene": partial(
            attnscope.intervene, MODEL, ["The tide comes in."], steps=0, why=False, ablations=["zero"]
        ),
    }
    with pytest.raises(ZeroDivisionError):
        calls[verb](progress=fail)
