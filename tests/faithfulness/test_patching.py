"""Patching, held against runs patched by hand."""

import numpy as np
import pytest
import torch

from attnscope.capture.load import load_model
from attnscope.capture.watching import watching
from attnscope.intervention.pairs import Pair
from attnscope.intervention.patch import patch
from attnscope.kernels.engines import attend_in_full

PAIRS = [
    Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to"),
    Pair("He was part<mask> the first.", "He was back<mask> the first.", " of", " to"),
]


@pytest.fixture(scope="module")
def loaded():
    return load_model("bundled", device="cpu")


def run(loaded, text, change=lambda number, output: output):
    """Answer minus wrong answer of a text, and every call's output, where `change` may put in others."""
    ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
    outputs = []

    def observe(_, call):
        outputs.append(change(len(outputs), attend_in_full(call)[0].clone()))
        return outputs[-1]

    loaded.model.eval()
    with torch.no_grad(), watching(loaded.model, observe):
        logits = loaded.model(ids).logits[0, ids[0].tolist().index(loaded.tokenizer.mask_token_id)]
    of, to = (loaded.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (" of", " to"))
    return float(logits[of] - logits[to]), outputs


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_a_head_is_patched_as_by_hand(loaded, direction):
    found = patch(loaded, PAIRS[:1], direction=direction, steps=0)["pairs"].isel(pair=0)
    texts = [PAIRS[0].clean, PAIRS[0].corrupted]
    texts = texts if direction == "denoising" else texts[::-1]
    _, donors = run(loaded, texts[0])

    def put_in(number, output):
        if number == 0:
            output[:, 3] = donors[0][:, 3]
        return output

    base, _ = run(loaded, texts[1])
    expected, _ = run(loaded, texts[1], put_in)
    np.testing.assert_allclose(found.difference.sel(layer=0, head=3), expected, rtol=1e-4)
    assert abs(expected - base) > 0.5
    of_base = found.corrupted if direction == "denoising" else found.clean
    np.testing.assert_allclose(of_base, base, rtol=1e-4)


def test_the_last_state_at_the_mask_brings_all_of_it_back(loaded):
    found = patch(loaded, PAIRS[:1], what="residual")["patched"].recovered
    place = found.token.values.tolist().index("<mask>")
    np.testing.assert_allclose(found.isel(block=-1, position=place), 1, rtol=1e-4)
    np.testing.assert_allclose(np.delete(found.isel(block=-1).values, place), 0, atol=1e-4)


def test_a_path_is_patched_as_by_hand(loaded):
    tree = patch(loaded, PAIRS[:1], receiver=(2, 1))
    found = tree["pairs"].isel(pair=0)
    _, donors = run(loaded, PAIRS[0].corrupted)
    clean, own = run(loaded, PAIRS[0].clean)

    def send(number, output):
        if number == 0:
            output[:, 0] = donors[0][:, 0]
        return own[1] if number == 1 else output

    _, received = run(loaded, PAIRS[0].clean, send)

    def put_in(number, output):
        if number == 2:
            output[:, 1] = received[2][:, 1]
        return output

    expected, _ = run(loaded, PAIRS[0].clean, put_in)
    np.testing.assert_allclose(found.difference.sel(layer=0, head=0), expected, rtol=1e-4)
    assert abs(expected - clean) > 1e-3
    assert tree["patched"].recovered.sel(layer=2).isnull().all()
