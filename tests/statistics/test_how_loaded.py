"""Raw weights and attention received load a model as the other verbs do."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.support.errors import AttnscopeError

TEXT = "The tide comes in twice a day, and twice a day it goes out again."
READ = ("weights", "received")


@pytest.mark.parametrize("verb", READ)
def test_numbers_are_those_of_the_requested_dtype(verb):
    read = getattr(attnscope, verb)
    half = load_model(MODEL, device="cpu", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    found = read("bundled", TEXT, device="cpu", dtype="bfloat16").values
    np.testing.assert_array_equal(found, read(half, TEXT).values)
    assert not np.array_equal(found, read("bundled", TEXT, device="cpu", dtype="float32").values)
    with pytest.raises(AttnscopeError, match="found dtype 'half'; expected one of float32, float16"):
        read("bundled", TEXT, dtype="half")
