"""Modes of PyTorch that a caller has set change no bit of a result, and are set afterwards, also after an error."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file

import attnscope
from attnscope.bundled import MODEL
from attnscope.intervention.pairs import Pair
from tests.comparison.small_systems import SMALL
from tests.statistics.generation.writers import writer
from tests.translation.small_translators import small_model, small_tokenizer

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again. " * 4, "It was part of the game."]
WORDS = [("part", "due"), ("one", "back"), ("rest", "led"), ("side", "up"), ("top", "due"), ("end", "back")]
PAIRS = [Pair(f"It was {a}<mask> the game.", f"It was {b}<mask> the game.", " of", " to") for a, b in WORDS]


@contextmanager
def modes(*chosen):
    """Modes by name, and the proof that they are still set at the end."""
    with ExitStack() as stack:
        if "type" in chosen:
            stack.callback(torch.set_default_dtype, torch.float32)
            torch.set_default_dtype(torch.float64)
        if "autocast" in chosen:
            stack.enter_context(torch.autocast("cpu"))
        if "inference" in chosen:
            stack.enter_context(torch.inference_mode())
        if "no gradients" in chosen:
            stack.enter_context(torch.no_grad())
        if "device" in chosen:
            stack.enter_context(torch.device("meta"))
        if "errors" in chosen:
            stack.enter_context(np.errstate(all="raise"))
        before = state()
        yield
        assert state() == before


def state():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        np.geterr(),
    )


def scan(_, **options):
    return attnscope.scan(MODEL, TEXTS, limit=2, window=16, **options)


def explain(_, **options):
    return attnscope.explain(MODEL, TEXTS, window=32, **options)


def intervene(_, **options):
    return attnscope.intervene(MODEL, TEXTS, limit=2, window=16, forbid_first=True, why=False, **options)


def roles(_, **options):
    return attnscope.roles(MODEL, TEXTS, limit=2, window=32, **options)


def patch(_, **options):
    return attnscope.patch(MODEL, PAIRS, **options)


def received(_):
    return attnscope.received(MODEL, TEXTS[1])


def weights(_):
    return attnscope.weights(MODEL, TEXTS[1])


def walk(_, **options):
    return dict(attnscope.walk(MODEL, TEXTS[1], **options).arrays)


def measure_weights(folder):
    numbers = np.random.default_rng(0).dirichlet(np.ones(6), (2, 1, 3, 6))
    return attnscope.measure_weights(numbers)


def generate(folder, **options):
    return attnscope.generate(folder / "writer", TEXTS, new_tokens=3, window=16, **options)


def translate(folder, **options):
    return attnscope.translate(folder / "translator", ["a b c", "th a"], **options)


def align(folder, **options):
    return attnscope.align(folder / "translator", ["a b c", "th a"], ["b a", "a"], **options).links


def train(folder, **options):
    attnscope.train(
        out=folder / "trained" / str(len(list(folder.glob("trained/*")))), **SMALL | {"updates": 3}, **options
    )
    return load_file(max(folder.glob("trained/*"), key=lambda path: int(path.name)) / "model.safetensors")


def diff(folder):
    scans = [attnscope.scan(MODEL, TEXTS * 3, window=length) for length in (16, 16)]
    return attnscope.diff(*scans)


def watch(_):
    with torch.device("cpu"):  # the module is the caller's, and so is its type
        torch.manual_seed(0)
        x = torch.randn(2, 7, 16, dtype=torch.float32)
        layer = torch.nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float32).eval()
        with torch.autocast("cpu", enabled=False), attnscope.watch(layer) as seen:
            layer(x, x, x)
        return seen.result()


VERBS = [
    scan,
    explain,
    intervene,
    roles,
    patch,
    received,
    weights,
    walk,
    measure_weights,
    generate,
    translate,
    align,
    train,
    diff,
    watch,
]


def bits(result):
    """All numbers of a result, as bytes."""
    if isinstance(result, xr.DataTree):
        return {node.path: bits(node.to_dataset()) for node in result.subtree}
    if isinstance(result, xr.Dataset):
        return {name: bits(values) for name, values in result.variables.items()}
    if isinstance(result, dict):
        return {name: bits(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [bits(value) for value in result]
    if isinstance(result, torch.Tensor | xr.DataArray | xr.Variable):
        result = np.asarray(result)
    if not isinstance(result, np.ndarray):
        return repr(result)
    return result.tolist() if result.dtype == object else (str(result.dtype), result.tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for part in writer():
        part.save_pretrained(place / "writer")
    small_model("bart").save_pretrained(place / "translator")
    small_tokenizer().save_pretrained(place / "translator")
    return place


@pytest.mark.parametrize("verb", VERBS)
def test_modes_of_the_caller_change_no_bit(verb, folder):
    expected = bits(verb(folder))
    with modes("type", "autocast", "inference", "device", "errors"):
        found = verb(folder)
    assert bits(found) == expected
    if verb in {intervene, patch, train}:  # which take gradients
        with modes("no gradients"):
            assert bits(verb(folder)) == expected


class Stopped(Exception):  # noqa: N818 says what it is
    pass


@pytest.mark.parametrize("verb", [scan, intervene, generate])
def test_they_are_set_again_after_an_error(verb, folder):
    def stop(_):
        raise Stopped

    with modes("type", "autocast", "inference", "device", "errors"), pytest.raises(Stopped):
        verb(folder, progress=stop)
