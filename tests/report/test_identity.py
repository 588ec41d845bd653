"""The identity of a function: what changes it, and what does not."""

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.report.identity import identity_of
from attnscope.support.errors import AttnscopeError

SCALE = 2.0


def helper(logits):
    return logits * SCALE


def metric(logits, inputs):
    return helper(logits).sum((1, 2)) if "input_ids" in {"input_ids", "labels", "pixel_values"} else inputs


def made(value, default=1):
    def inner(logits, power=default):
        return torch.pow(logits * value, power)

    return inner


def sha(function):
    return identity_of(function, "metric")["sha256"]


def test_a_function_has_its_qualified_name():
    name = identity_of(made(1), "metric")["name"]
    assert name == "tests.report.test_identity.made.<locals>.inner"
    assert identity_of(partial(metric, inputs={}), "metric")["name"] == "tests.report.test_identity.metric"


def test_what_is_closed_over_decides():
    weights = np.arange(3.0)
    values = [1, 1.0, "1", b"1", None, weights, weights + 1, torch.ones(2), torch.ones(2).bfloat16(), {"a": 1}, [1]]
    values += [
        ...,
        torch.float16,
        Path("a"),
        Path("b"),
        torch.nn.Linear(1, 1),
        helper,
        np.exp,
        torch.exp,
        np.float32(1),
        {1},
    ]
    assert len({sha(made(value)) for value in values}) == len(values)
    assert sha(made(weights)) == sha(made(weights.copy()))
    assert sha(made(1, default=1)) != sha(made(1, default=2))
    assert sha(partial(metric, inputs=1)) != sha(partial(metric, inputs=2))


def test_a_value_of_the_module_decides(monkeypatch):
    before = sha(metric)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert sha(metric) != before  # by way of its helper


def test_the_layout_of_the_code_does_not_decide():
    texts = (
        "def f(x):\n    return x.sum()",
        "def f(x):\n    # the sum\n\n    return x.sum()",
        "def f(x):\n    return x.mean()",
    )
    found = []
    for text in texts:
        exec(text, space := {"__name__": "own"})  # noqa: S102 functions of two layouts
        found.append(sha(space["f"]))
    assert found[0] == found[1] != found[2]


def test_it_is_the_same_in_another_process():
    """Whose sets have another order."""
    code = "from tests.report.test_identity import metric, sha; print(sha(metric))"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed == f"{sha(metric)}\n"


def test_callable_objects_and_methods_have_their_state():
    class Scaled:
        def __init__(self, factor):
            self.factor, self.again = factor, self

        def __call__(self, logits):
            return logits * self.factor

        def method(self, logits):
            return logits + self.factor

    assert sha(Scaled(1)) == sha(Scaled(1)) != sha(Scaled(2))
    assert len({sha(Scaled(1).method), sha(Scaled(2).method), sha(Scaled(1))}) == 3


def test_methods_of_classes_and_files_of_modules_decide(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else the file of the second could be that of the first
    found = []
    for number in (1, 2):
        (tmp_path / "helpers_of_mine.py").write_text(
            "from dataclasses import dataclass, field\n@dataclass(frozen=True)\nclass Scale:\n"
            "    by: float = 1.0\n    more: list = field(default_factory=list)\n"
            f"    def of(self, x):\n        return x * {number}\n"
        )
        sys.modules.pop("helpers_of_mine", None)
        helpers = importlib.import_module("helpers_of_mine")
        found += [sha(made(value)) for value in (helpers, helpers.Scale, helpers.Scale(), helpers.Scale().of)]
        assert sha(made(helpers.Scale())) == found[-2]
    assert len({*found}) == 8


def test_a_value_without_identity_is_named():
    with pytest.raises(AttnscopeError, match=r"metric made.<locals>.inner uses value of type generator, which"):
        identity_of(made(letter for letter in "ab"), "metric")
