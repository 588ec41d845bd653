"""Every verb tells how far it has come in the same way: a name, a share that rises to 1, and what else there is."""

import numpy as np
import pytest

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.intervention.ablation import effects, removal_curves, search_heads
from attnscope.intervention.edits import Forbidden, knock_out, shuffled_weights
from attnscope.intervention.predictions import prediction_session
from attnscope.lineage import compare as held_out
from attnscope.lineage.config import read_config
from attnscope.read.encoded import texts_of
from attnscope.support.progress import Progress
from tests.comparison.small_systems import SMALL
from tests.translation.small_translators import small_model, small_tokenizer

PAIRS = ["a b c", "b a"], ["b c", "a"]


def scan(_, **told):
    attnscope.scan(MODEL, ["The tide comes in twice a day."], **told)


def walk(_, **told):
    attnscope.walk(MODEL, "The tide comes in.", **told)


def translate(_, **told):
    attnscope.translate(small_model("bart"), PAIRS[0], tokenizer=small_tokenizer(), **told)


def align(folder, **told):
    (folder / "gold").write_text("1-1\n1-1\n")
    given = {"targets": PAIRS[1], "tokenizer": small_tokenizer(), "gold": folder / "gold"}
    attnscope.align(small_model("bart"), PAIRS[0], **given, **told)


def score(_, **told):
    attnscope.score({"one": PAIRS[0]}, PAIRS[1], texts=PAIRS[0], by_length=[1, 2], resamples=0, **told)


def train(folder, **told):
    attnscope.train(out=folder, **SMALL, **told)


def compare(folder, **told):
    attnscope.compare({"one": read_config(**SMALL), "two": read_config(**SMALL)}, out=folder, beams=1, **told)


def of_heads(measure):
    """A measure of what heads are worth, over two texts."""

    def verb(_, **told):
        texts = texts_of(["The tide comes in twice.", "It goes out again."])
        asked = prediction_session(load_model(MODEL, device="cpu"), texts, window=16, limit=2)
        asked.check()
        measure(asked, **told)

    return verb


ORDERS = {"first": (np.zeros((3, 4)), np.zeros((3, 4)))}
OF_HEADS = [
    of_heads(lambda asked, **told: list(effects(asked, ["zero"], steps=0, **told))),
    of_heads(lambda asked, **told: search_heads(asked, passes=1, **told)),
    of_heads(lambda asked, **told: removal_curves(asked, ORDERS, random_orders=1, **told)),
    of_heads(lambda asked, **told: knock_out(asked, Forbidden(first=True), **told)),
    of_heads(lambda asked, **told: shuffled_weights(asked, texts=1, **told)),
]


@pytest.mark.parametrize("verb", [scan, walk, translate, align, score, train, compare, *OF_HEADS])
def test_the_share_rises_to_one(verb, tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "HELD_OUT", 20)
    told = []
    verb(tmp_path, progress=told.append)
    shares = [at.share for at in told]
    assert all(isinstance(at, Progress) for at in told)
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == pytest.approx(1)
