"""A verb changes no mode of PyTorch, random number or thread count of its caller, and no mode changes its results."""

from contextlib import ExitStack, contextmanager, suppress
from functools import cache

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnscope
import attnscope_lineage
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.intervention.pairs import Pair
from attnscope.support.state import replaced
from attnscope_lineage import comparison as held_out
from attnscope_lineage.config import read_config
from attnscope_yamamoto2023.relearn import relearn_positions
from tests.measure.generation.causal_models import writer
from tests.packages.lineage.compare.small_systems import SMALL
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.planted_models import wave_bert
from tests.tiny_models import tiny

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
        if "kernels" in chosen:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("medium")
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        before = state()
        yield
        assert state() == before


def state():
    """Modes, random numbers of NumPy and PyTorch, and threads; the checks of shapes in tests draw from Python's."""
    kind, numbers, *rest = np.random.get_state()  # noqa: NPY002
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.random.get_rng_state().numpy().tobytes(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.flash_sdp_enabled(),
        np.geterr(),
        (kind, numbers.tobytes(), *rest),
    )


def scan(_, **options):
    return attnscope.scan(MODEL, TEXTS, limit=2, window=16, **options)


def explain(folder, **options):
    return attnscope.explain(folder / "waves", TEXTS, tokenizer=MODEL, window=32, limit=2, **options)


def intervene(_, **options):
    return attnscope.intervene(MODEL, TEXTS, limit=2, window=16, forbid_first=True, why=False, **options)


def roles(_, **options):
    return attnscope.roles(MODEL, TEXTS, limit=2, window=32, only="previous_token", **options)


def patch(_, **options):
    return attnscope.patch(MODEL, PAIRS[:2], **options)


def walk(_, **options):
    return dict(attnscope_lineage.walk(MODEL, TEXTS[1], **options).arrays)


def generate(folder, **options):
    return attnscope.generate(folder / "writer", TEXTS, new_tokens=3, window=16, **options)


def translate(folder, **options):
    return attnscope_lineage.translate(folder / "translator", ["a b c", "th a"], sample=True, **options)


def align(folder, **options):
    return attnscope_lineage.align(folder / "translator", ["a b c", "th a"], ["b a", "a"], **options)


def train(folder, **options):
    out = folder / "trained" / str(len(list(folder.glob("trained/*"))))
    attnscope_lineage.train(out=out, **SMALL | {"updates": 3}, **options)
    return load_file(out / "model.safetensors")


def compare(folder, **options):
    return attnscope_lineage.compare(
        {"one": read_config(**SMALL)}, out=folder / "compared", beams=1, threads=1, **options
    )


def relearn(_, **options):
    return relearn_positions(MODEL, [TEXTS[0] * 3], steps=1, batch_size=2, limit=2, **options)


def load_without_its_head(folder):
    return load_model(folder / "headless", device="cpu", need_tokenizer=False)


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
    """With a writer, a translator, heads that look at an offset, and a model whose head is missing and drawn."""
    place = tmp_path_factory.mktemp("models")
    for part in writer():
        part.save_pretrained(place / "writer")
    small_model("bart").save_pretrained(place / "translator")
    small_tokenizer().save_pretrained(place / "translator")
    wave_bert((-1, 1, -3, 2)).save_pretrained(place / "waves")
    tiny("bert").save_pretrained(place / "headless")
    path = place / "headless" / "model.safetensors"
    trunk = {name: tensor for name, tensor in load_file(path).items() if not name.startswith("cls.")}
    save_file(trunk, path, metadata={"format": "pt"})
    return place


@pytest.fixture(scope="module")
def expected(folder):
    """The numbers of a verb in no mode."""
    return cache(lambda verb: bits(verb(folder)))


@pytest.mark.parametrize("verb", [scan, explain, intervene, roles, patch, walk, generate, translate, align, train])
def test_modes_of_the_caller_change_no_bit(verb, folder, expected):
    with modes("type", "autocast", "inference", "device", "errors"):
        found = verb(folder)
    assert bits(found) == expected(verb)
    if verb in {intervene, patch, train}:  # which take gradients
        with modes("no gradients"):
            assert bits(verb(folder)) == expected(verb)


@pytest.mark.parametrize("chosen", [(), ("type", "inference", "device", "errors"), ("autocast",)])
def test_watch_measures_the_pass_that_happens_in_the_modes_of_the_caller(chosen):
    """The pass is the caller's, with the kernels and the types of these modes, and so are its queries and keys."""
    with torch.device("cpu"), torch.random.fork_rng():
        torch.manual_seed(0)
        states = torch.randn(2, 7, 16)
        layer = torch.nn.MultiheadAttention(16, 4, batch_first=True, bias=False).eval()
        torch.nn.init.normal_(layer.in_proj_weight, std=0.5)
    with modes(*chosen):
        with torch.no_grad(), attnscope.watch(layer, statistics="entropy") as seen:
            layer(states, states, states)
            query, key = (
                torch.nn.functional.linear(states.transpose(0, 1), matrix).unflatten(-1, (4, 4)).permute(1, 2, 0, 3)
                for matrix in layer.in_proj_weight.chunk(3)[:2]
            )
        found = seen.result()
    assert query.dtype == (torch.bfloat16 if "autocast" in chosen else torch.float32)
    weights = (query.double() @ key.double().mT / 2).softmax(-1)
    np.testing.assert_allclose(found.entropy[:, 0], torch.special.entr(weights).sum(-1).mean(-1), atol=1e-5)


class Stopped(Exception):  # noqa: N818 says what it is
    pass


def stop(*_):
    raise Stopped


@pytest.mark.parametrize("verb", [scan, intervene])
def test_kernels_that_the_caller_chose_change_no_bit(verb, folder, expected):
    with modes("kernels"):
        assert bits(verb(folder)) == expected(verb)


@pytest.mark.parametrize("verb", [scan, intervene, generate, translate, train, compare, relearn, load_without_its_head])
def test_the_state_is_restored_after_the_verb_and_after_an_error(verb, folder, monkeypatch):
    monkeypatch.setattr(held_out, "HELD_OUT", 20)
    chosen = ("errors",) if verb in {compare, relearn, load_without_its_head} else ("type", "autocast", "device")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with modes(*chosen), suppress(Stopped):
            if verb is load_without_its_head:
                verb(folder)
            else:
                verb(folder, progress=stop)
    finally:
        torch.set_num_threads(before)


def test_a_seed_gives_the_same_draws_whatever_was_drawn_before(folder):
    def drawn(seed):
        (first, _) = translate(folder, temperature=2.0, seed=seed)
        return first[0].text

    torch.manual_seed(1)
    first = drawn(3)
    torch.manual_seed(2)
    assert drawn(3) == first
    assert drawn(4) != first


def test_replaced_entries_are_those_from_before():
    entries = {"kept": 1, "other": 2}
    with replaced(entries, other=3, new=4):
        assert entries == {"kept": 1, "other": 3, "new": 4}
    assert entries == {"kept": 1, "other": 2}
