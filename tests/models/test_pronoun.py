"""The bundled model that knows what "it" stands for."""

import sys
from pathlib import Path

import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import NOUNS, SENTENCES

ROOT = Path(__file__).parents[2]
ANIMAL = "The animal didn't cross the street because it was too tired."


def test_removing_the_head_breaks_the_answer():
    effects = attnscope.intervene("bundled:pronoun", limit=60, ablations=["mean"], steps=0, why=False)["effects"]
    assert float(effects.accuracy.min()) == 1.0
    assert float(effects.accuracy_change.sel(layer=1, head=0).mean()) < -0.6
    with pytest.raises(AttnscopeError, match="equals its target"):
        attnscope.intervene("bundled:pronoun", SENTENCES, targets=SENTENCES, limit=4)
    with pytest.raises(AttnscopeError, match=r"tokens and its target"):
        attnscope.intervene("bundled:pronoun", [ANIMAL] * 2, targets=[f"{ANIMAL} {ANIMAL}"] * 2)


def test_its_sentences_are_those_of_the_script(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import pronoun_text

    monkeypatch.setattr(sys, "argv", ["pronoun_text", str(tmp_path)])
    pronoun_text.main()
    for path, name in ((SENTENCES, "valid.it.txt"), (NOUNS, "valid.noun.txt")):
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(path.read_text(encoding="utf-8"))
    train = set((tmp_path / "train.it.txt").read_text(encoding="utf-8").splitlines())
    assert train.isdisjoint(SENTENCES.read_text(encoding="utf-8").splitlines())
    assert ANIMAL not in train
