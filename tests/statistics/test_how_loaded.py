"""Raw weights and attention received load a model as the other verbs do."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.measure import raw as _raw
from attnscope.support.errors import AttnscopeError

TEXT = "The tide comes in twice a day, and twice a day it goes out again."
READ = {"weights": _raw, "received": _raw}


@pytest.mark.parametrize("verb", READ)
def test_numbers_are_those_of_the_type_that_was_asked_for(verb):
    read = getattr(attnscope, verb)
    half = load_model(MODEL, device="cpu", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    found = read("bundled", TEXT, device="cpu", dtype="bfloat16").values
    np.testing.assert_array_equal(found, read(half, TEXT).values)
    assert not np.array_equal(found, read("bundled", TEXT, device="cpu", dtype="float32").values)
    with pytest.raises(AttnscopeError, match="dtype 'half' is not known"):
        read("bundled", TEXT, dtype="half")


@pytest.mark.parametrize("verb", READ)
def test_what_the_hub_and_its_code_need_is_passed_on(verb, monkeypatch):
    asked = {"revision": "a1b2c3", "trust_remote_code": True, "device": "cpu", "dtype": "float32"}

    def load(_, **given):
        assert given == asked | {"tokenizer": None}
        raise AttnscopeError("loaded")

    monkeypatch.setattr(READ[verb], "load_model", load)
    with pytest.raises(AttnscopeError, match="loaded"):
        getattr(attnscope, verb)("somebody/model", TEXT, **asked)


def test_attention_received_tells_how_far_it_is():
    told = []
    attnscope.received("bundled", TEXT, device="cpu", progress=told.append)
    shares = [step.share for step in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
