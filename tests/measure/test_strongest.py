"""The strongest row of each window, and the examples of a scan, against all weights written out."""

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.measure.contexts import examples_by_head
from attnscope.measure.rows import LEAST_KEYS
from attnscope.results.scan_report import examples_of
from tests.tiny_models import tiny_reader

TEXTS = [
    "The keeper lit the lamp before the tide came in, and the lamp burned until the morning came.",
    "A boat left the harbour at noon; the harbour was quiet until the boat came back.",
    "Bread rises because yeast feeds on sugar, and the gas it gives off stretches the dough.",
]


def strongest_of(matrix, special):
    """By brute force: among queries that see enough keys and whose largest weight is on an ordinary key."""
    best = (-1.0, 0, 0)
    for query, row in enumerate(matrix):
        key = int(row.argmax())
        if not special[query] and (row > 0).sum() >= LEAST_KEYS and key and not special[key] and row[key] > best[0]:
            best = (float(row[key]), query, key)
    return best


@pytest.mark.parametrize("name", ["", "stories260K-llama"])
def test_it_is_that_of_all_weights_written_out(name, models):
    model = str(models / name) if name else None
    found = attnscope.scan(model, TEXTS, window=64, limit=3, statistics="strongest")
    for number, text in enumerate(TEXTS):
        weights = attnscope.weights(model, text, window=64)
        special = np.isin(weights.query_token.values, ["<s>", "</s>"])
        for layer, head in np.ndindex(weights.sizes["layer"], weights.sizes["head"]):
            weight, query, key = found.strongest[number, layer, head].values.tolist()
            expected = strongest_of(weights.sel(layer=layer, head=head).values, special)
            assert weight == pytest.approx(expected[0], abs=1e-5)
            assert weights.sel(layer=layer, head=head).values[int(query), int(key)] == pytest.approx(weight, abs=1e-5)


def test_the_examples_of_a_head_are_those_of_the_command_where_weights_are_above_a_half(tmp_path):
    scanned = attnscope.scan(limit=20, window=64, show=True)
    found = attnscope.examples(heads=(0, 1), limit=20, window=64, k=5)
    top = found.isel(example=found.set == "top")
    own = examples_of(scanned)["0.1"]
    assert [one["weight"] for one in own] == pytest.approx(top.weight.values.tolist(), abs=1e-6)
    assert min(top.weight.values) > 0.5
    assert {one["window"] for one in own} == {*top.window_number.values.tolist()}
    for one in own:
        marks = {mark: text for text, mark in one["pieces"]}
        assert set(marks) >= {"query", "key"}
        assert one["offset"] == one["key"] - one["query"]


def test_tasks_and_a_folder_store_the_same_examples(tmp_path):
    given = {"limit": 8, "window": 48, "batch_size": 1}
    memory = examples_of(attnscope.scan(**given, show=True))
    attnscope.scan(**given, out=tmp_path / "whole")
    for number in (2, 1):
        attnscope.scan(**given, out=tmp_path / "parts", task=f"{number}/2")
    assert len(memory) == 12
    for name in ("whole", "parts"):
        assert examples_of(attnscope.open_run(tmp_path / name)) == memory
    assert examples_by_head(attnscope.open_run(tmp_path / "whole", part="examples")) == memory


def test_in_cross_attention_queries_are_of_the_target():
    model, tokenizer = tiny_reader("bart")
    scanned = attnscope.scan(model, TEXTS, tokenizer=tokenizer, targets=TEXTS[::-1], window=64, show=True)
    cross = scanned.layer_kind.values.tolist().index("cross")
    assert all(" ← " in {text for text, _ in one["pieces"]} for one in examples_of(scanned)[f"{cross}.0"])


@pytest.mark.parametrize("options", [{"pool": 2}, {"rows": 16}])
def test_it_needs_all_rows_of_single_windows(options):
    with pytest.raises(AttnscopeError, match="strongest needs all rows of single windows"):
        attnscope.scan(texts=TEXTS, window=64, statistics="default,strongest", **options)
    assert "strongest" not in attnscope.scan(texts=TEXTS, window=64, **options)
