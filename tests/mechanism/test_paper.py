"""The table of published numbers, on models of which the answers are planted or known."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from threadpoolctl import threadpool_limits

from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture import load_model
from attnscope.mechanism.paper import (
    COLUMNS,
    PUBLISHED,
    figure_6,
    is_shaped_like,
    paper_lines,
    paper_table,
    reproduce,
    table_of_windows,
)
from tests.families import tiny
from tests.mechanism.planted_roberta import FULL, HEADS, SHARES, SMALL, planted_roberta, random_ids

REACTIONS = Path(__file__).parents[2] / "examples" / "reactions.txt"
VERDICTS = {"agrees", "differs", "descriptive", "not comparable", "not run"}
SETUP = (3, 7, 14, 17, 19, 24)
NOT_RUN = (20, 21, 22, 23, 25, 26)


def verdicts(table):
    return dict(zip(table.row.values.tolist(), table.verdict.values.tolist(), strict=True))


def value(table, row):
    return float(table.value.sel(row=row))


@pytest.fixture(scope="module")
def small():
    return planted_roberta(SMALL)


@pytest.fixture(scope="module")
def planted(small):
    return table_of_windows(small, random_ids(SMALL, 4), comparable=True)


def test_every_row_is_there(planted):
    assert planted.row.values.tolist() == list(range(1, 27)) == list(PUBLISHED)
    assert set(planted.verdict.values) <= VERDICTS
    for row, verdict in verdicts(planted).items():
        assert (verdict == "descriptive") == (row in SETUP)
        assert bool(planted.note.sel(row=row).item()) or verdict != "not run"


def check_position_table(table, sizes):
    """Rows 1 to 5: what the planted waves are, whatever else the model holds."""
    assert value(table, 1) == pytest.approx(50.51, abs=1e-3)
    assert value(table, 2) == pytest.approx(92.23, abs=1e-3)
    assert value(table, 3) == 2 * (np.searchsorted(np.cumsum(SHARES), 0.95) + 1)
    assert value(table, 4) == sizes.frequencies[0]
    assert value(table, 5) == pytest.approx(0, abs=1e-6)
    assert [verdicts(table)[row] for row in (1, 2, 4, 5)] == ["agrees"] * 4


def test_planted_position_table(planted):
    check_position_table(planted, SMALL)


def test_planted_heads(planted):
    assert (value(planted, 10), value(planted, 11), value(planted, 13)) == (1, -2, -2)
    assert [verdicts(planted)[row] for row in (10, 11, 13, 15)] == ["agrees"] * 4
    assert value(planted, 15) == 10  # cosine and sine of five waves
    for row, head in ((9, "(8,9)"), (12, "(7,5)")):
        assert verdicts(planted)[row] == "not run"
        assert planted.note.sel(row=row).item() == f"no head{head} in 3 layers of 4 heads"


def test_words_drawn_at_random_have_no_peak(planted):
    assert value(planted, 6) == 0
    assert verdicts(planted)[6] == "agrees"


def test_layers_hold_the_waves(planted):
    assert value(planted, 16) > 1
    assert value(planted, 18) >= 2 * len(SHARES)
    assert value(planted, 19) == 4 * SMALL.positions


def test_a_head_planted_to_the_other_side_differs():
    model = planted_roberta(SMALL, {(1, 1): (2, 0.25), (2, 3): (-1, 4.0)})
    found = table_of_windows(model, random_ids(SMALL, 2), comparable=True)
    assert (value(found, 10), value(found, 11), value(found, 13)) == (-1, 2, 2)
    assert [verdicts(found)[row] for row in (10, 11, 13)] == ["differs"] * 3


def test_another_table_differs_and_other_ways_are_tried(small):
    name = "roberta.embeddings.position_embeddings"
    kept = small.get_submodule(name).weight.detach().clone()
    moved = kept.clone()
    with torch.no_grad():
        moved[:-2] = kept[2:]  # the planted rows stand at 0 .. 127
        moved[-2:] = torch.randn(2, SMALL.width)
        small.get_submodule(name).weight.copy_(moved)
        found = table_of_windows(small, random_ids(SMALL, 2), comparable=True)
        small.get_submodule(name).weight.copy_(kept)
    assert verdicts(found)[1] == "differs"
    assert found.note.sel(row=1).item().startswith("matches with: all rows from 0")


def test_a_model_of_another_shape_is_not_held_against_the_papers(small):
    assert not is_shaped_like(small, "roberta-base")
    found = verdicts(table_of_windows(small, random_ids(SMALL, 2)))
    assert {found[row] for row in found if row not in {*SETUP, *NOT_RUN, 9, 12}} == {"not comparable"}
    assert {found[row] for row in NOT_RUN} == {"not run"}


def test_gpt2_has_rows_of_its_own():
    model = tiny("gpt2")
    ids = np.random.default_rng(0).integers(0, 60, (2, 64)).tolist()
    found = table_of_windows(model, ids)
    assert verdicts(found)[20] == "not comparable"
    assert verdicts(found)[21] == "descriptive"
    assert found.ours.sel(row=21).item().startswith("k=2, t=-30..30")


def test_slow_waves_of_gpt2_agree():
    model = tiny("gpt2")
    position = torch.arange(64)
    with torch.no_grad():
        model.get_submodule("transformer.wpe").weight.copy_(
            (2 * torch.pi * position / 64).cos()[:, None].expand(-1, 32)
        )
    ids = np.random.default_rng(0).integers(0, 60, (2, 64)).tolist()
    found = table_of_windows(model, ids, comparable=True)
    assert value(found, 20) == pytest.approx(100)
    assert verdicts(found)[20] == "agrees"


def test_a_model_without_a_table_is_refused():
    with pytest.raises(AttnscopeError, match=r"no table of absolute positions.*RoPE"):
        table_of_windows(tiny("llama"), [[3, 4, 5, 6]] * 2)


def test_reproduce_bundled(tmp_path):
    names = []
    tree, table = reproduce(out=tmp_path / "run", limit=4, progress=lambda step: names.append(step.name))
    assert {"waves", "figure_6", "paper"} <= set(tree.children)
    assert {"figure 6", "published numbers", "done"} <= set(names)
    assert (tmp_path / "run" / "paper.zarr").is_dir()
    again = reproduce(out=tmp_path / "run", limit=4)[1]
    xr.testing.assert_identical(again, table)
    alone = paper_table(MODEL, limit=4)
    assert alone.ours.values.tolist() == table.ours.values.tolist()


def test_figure_6_shows_the_planted_shifts(small):
    figure = figure_6(small, random_ids(SMALL, 2))
    assert figure.completion.values.tolist() == ["minimal", "lapack"]
    assert figure.named_head.values.tolist() == ["1.1", "2.3"]
    offsets = [HEADS[1, 1][0], HEADS[2, 3][0]]
    np.testing.assert_allclose(-figure.median_shift.sel(completion="minimal"), offsets, atol=0.1)


def test_lines_to_print(planted):
    lines = paper_lines(planted)
    assert {len(line) for line in lines} == {len(COLUMNS)}
    assert [line[0] for line in lines] == [str(row) for row in range(1, 27)]
    assert lines[0][-1] == "agrees"
    assert lines[8][-1] == "not run: no head(8,9) in 3 layers of 4 heads"


def test_chemistry_albert(models):
    with threadpool_limits(1):
        found = paper_table(models / "rxnmapper-albert", REACTIONS, window=96, limit=8)
    assert found.ours.sel(row=1).item() == "50.03%"
    assert value(found, 2) == pytest.approx(86.2, abs=0.05)
    assert value(found, 4) == 48
    assert "peaks: 48, 42" in found.ours.sel(row=4).item()
    assert value(found, 12) > 0.5
    assert verdicts(found)[4] == "not comparable"


@pytest.mark.slow
def test_roberta_of_the_real_shape():
    model = planted_roberta(FULL)
    assert is_shaped_like(model, "roberta-base")
    with threadpool_limits(1):
        found = table_of_windows(model, random_ids(FULL, 3))
    check_position_table(found, FULL)
    assert [value(found, row) for row in (9, 10, 11, 13)] == [-1, 1, -2, -2]
    assert value(found, 12) > 0
    assert value(found, 15) == 10
    agree = {row for row, verdict in verdicts(found).items() if verdict == "agrees"}
    assert {1, 2, 4, 5, 6, 9, 10, 11, 12, 13, 15} <= agree
    assert "not comparable" not in verdicts(found).values()


def test_the_bundled_model_is_no_roberta():
    assert not is_shaped_like(load_model(MODEL, need_tokenizer=False).model, "roberta-base")
