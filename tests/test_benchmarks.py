"""What benchmarks import is there: they are too long to run in tests."""

import argparse
import ast
import importlib
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_imports_what_there_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnscope"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_recomputed_shares_of_heads_are_the_published_ones(data):
    published = importlib.import_module("benchmarks.published")
    if not (data / "published").is_dir():
        pytest.skip(f"no published/ in {data}")
    found = published.lists(argparse.Namespace(data=data))
    assert [row[-1] for row in found["rows"]] == ["yes"] * 13
    assert found["overlap"]["shared"] == 20
    assert found["overlap"]["p"] < 1e-12


def test_auroc_counts_pairs():
    published = importlib.import_module("benchmarks.published")
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 6, 40), rng.random(40) < 0.3
    pairs = scores[positive][:, None] - scores[~positive]
    assert np.isclose(published.auroc(scores, positive), ((pairs > 0) + 0.5 * (pairs == 0)).mean())
