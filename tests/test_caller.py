"""The caller's random numbers and threads go on after a verb as if nothing had been, also after an error."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.lineage import compare as held_out
from attnscope.lineage.config import read_config
from attnscope.lineage.walk import walk_toy
from attnscope_yamamoto2023.relearn import relearn_positions
from tests.comparison.small_systems import SMALL
from tests.families import tiny
from tests.translation.small_translators import small_model, small_tokenizer

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again. " * 12]


class Stopped(Exception):  # noqa: N818 says what it is
    pass


def stop(*_):
    raise Stopped


def train(folder, **options):
    return attnscope.train(out=folder / "model", **SMALL, **options)


def compare(folder, **options):
    return attnscope.compare({"one": read_config(**SMALL)}, out=folder / "compared", beams=1, threads=1, **options)


def translate(folder, **options):
    return attnscope.translate(folder / "translator", ["a b c"], sample=True, **options)


def relearn(_, **options):
    return relearn_positions(MODEL, TEXTS, steps=1, batch_size=2, limit=2, **options)


def scan(_, **options):
    return attnscope.scan(MODEL, TEXTS, limit=2, **options)


def toy(_):
    return walk_toy(seed=5)


def load_without_its_head(folder):
    return load_model(folder / "headless", device="cpu", need_tokenizer=False)


def random_state():
    """Of NumPy and PyTorch; the checks of shapes in tests draw from Python's."""
    kind, numbers, *rest = np.random.get_state()  # noqa: NPY002
    return (kind, numbers.tolist(), *rest), torch.random.get_rng_state().tolist()


@pytest.fixture
def folder(tmp_path):
    """With a translator, and a model whose head is missing and drawn."""
    small_model("bart").save_pretrained(tmp_path / "translator")
    small_tokenizer().save_pretrained(tmp_path / "translator")
    tiny("bert").save_pretrained(tmp_path / "headless")
    path = tmp_path / "headless" / "model.safetensors"
    trunk = {name: tensor for name, tensor in load_file(path).items() if not name.startswith("cls.")}
    save_file(trunk, path, metadata={"format": "pt"})
    return tmp_path


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch):
    monkeypatch.setattr(held_out, "HELD_OUT", 20)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def check(run, *given, **options):
    """A run leaves random numbers and threads as they were."""
    torch.manual_seed(123)
    before = random_state()
    with suppress(Stopped):
        run(*given, **options)
    assert random_state() == before
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("run", [train, compare, translate, relearn, scan, toy, load_without_its_head])
def test_a_caller_gets_random_numbers_and_threads_back(run, folder):
    check(run, folder)


@pytest.mark.parametrize("run", [train, compare, translate, relearn, scan])
def test_so_it_does_when_the_verb_is_stopped(run, folder):
    check(run, folder, progress=stop)


def test_a_seed_gives_the_same_draws_whatever_was_drawn_before(folder):
    def said(seed):
        (found,) = translate(folder, temperature=2.0, seed=seed)
        return found[0].text

    torch.manual_seed(1)
    first = said(3)
    torch.manual_seed(2)
    assert said(3) == first
    assert said(4) != first
