"""The table of published numbers, on models of which the answers are planted or known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from threadpoolctl import threadpool_limits
from transformers import GPT2Config, GPT2LMHeadModel, RobertaForMaskedLM

from attnscope import AttnscopeError, explain
from attnscope.explanation import explain as _explain
from attnscope.explanation.catalogue import known_analyses, requested_analyses
from attnscope.explanation.study import Study
from attnscope_yamamoto2023 import rows as paper_figures
from attnscope_yamamoto2023.models import SHAPES, Subject, is_shaped_like, published_name
from attnscope_yamamoto2023.rows import ROWS, other_side, paper_table
from tests.explanation.planted_roberta import FULL, HEADS, SHARES, SMALL, config_of, planted_roberta, random_ids
from tests.results.page.planted_explanation import explain_page_of
from tests.tiny_models import tiny

REACTIONS = Path(__file__).parents[3] / "examples" / "reactions.txt"
VERDICTS = {"agrees", "differs", "descriptive", "same shape, other weights", "not comparable", "not run"}
SETUP = (3, 7, 14, 17, 19, 24)
NOT_RUN = (20, 21, 22, 23, 25, 26)


@pytest.fixture(scope="module", autouse=True)
def few_analyses():
    """Beside those of the paper: the others have tests of their own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_explain, "ANALYSES", [known_analyses()[name] for name in ("forms", "waves", "spectra")])
        yield


def verdicts(table):
    return dict(zip(table.row.values.tolist(), table.verdict.values.tolist(), strict=True))


def value(table, row):
    return float(table.value.sel(row=row))


@pytest.fixture(scope="module")
def small():
    return planted_roberta(SMALL)


@pytest.fixture(scope="module")
def planted(small):
    return paper_table(small, random_ids(SMALL, 4), published_as="roberta-base")


def test_every_row_is_there(planted):
    assert planted.row.values.tolist() == list(range(1, 27)) == [row.number for row in ROWS]
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


@pytest.mark.parametrize(("right", "agrees"), [(0.59, False), (0.61, True), (0.41, False)])
def test_head_7_5_leans_to_the_right_by_a_fifth_or_more(right, agrees):
    """(R - L) / (R + L) above 0.2: any head that leans at all would agree otherwise, half of all random ones."""
    sums = np.zeros(21)
    sums[[7, 10, 13]] = 1 - right, 0.4, right

    class Planted(Subject):
        def __init__(self):
            pass

        def profile(self, layer, head):
            return {(7, 5): sums}[layer, head]

    found = other_side(Planted())
    assert found.holds == agrees
    assert found.number == pytest.approx(2 * right - 1)


def test_a_model_of_another_shape_is_not_held_against_the_papers(small):
    assert not is_shaped_like(small, "roberta-base")
    found = verdicts(paper_table(small, random_ids(SMALL, 2)))
    assert {found[row] for row in found if row not in {*SETUP, *NOT_RUN, 9, 12}} == {"not comparable"}
    assert {found[row] for row in NOT_RUN} == {"not run"}


WAVE_OFFSET, WAVE_PERIOD = -3, 64


def planted_gpt2(sizes=None):
    """A GPT-2 whose table is one slow wave; head 1 of layer 0 scores ``cos w (j - i + 3)``, words aside."""
    torch.manual_seed(0)
    settings = {"vocab_size": 60, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}
    settings |= {"bos_token_id": 0, "eos_token_id": 0} | (sizes or {})
    model = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    width, head_width = model.config.n_embd, model.config.n_embd // model.config.n_head
    speed = 2 * torch.pi / WAVE_PERIOD
    angle = speed * torch.arange(model.config.n_positions)
    wave = torch.stack([angle.cos(), angle.sin(), -angle.cos(), -angle.sin()], 1)  # mean 0, one norm
    block = model.transformer.h[0].attn.c_attn  # x @ weight: columns of queries, then of keys
    with torch.no_grad():
        model.transformer.wte.weight.mul_(1e-3)
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[:, :4] = wave
        turn = torch.tensor(speed * WAVE_OFFSET)
        rotation = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
        block.weight.mul_(1e-3)
        block.weight[:2, head_width : head_width + 2] = rotation.T
        block.weight[:2, width + head_width : width + head_width + 2] = torch.eye(2)
    return model


def gpt2_ids(texts=2, length=128):
    return np.random.default_rng(0).integers(0, 60, (texts, length)).tolist()


def test_the_planted_wave_of_gpt2_is_reported():
    found = paper_table(planted_gpt2(), gpt2_ids(), published_as="gpt2")
    assert value(found, 20) == pytest.approx(100)
    assert verdicts(found)[20] == "agrees"
    assert value(found, 21) == 1  # one head of eight scores by position
    assert found.ours.sel(row=21).item().endswith("by layer 1.0 0.0")


def take_for_the_real_one(model, name, monkeypatch):
    """Only the class and the sizes tell: from now on a small model's are those of the published one."""
    assert not is_shaped_like(model, name)
    sizes = {size: getattr(model.config, size) for size in SHAPES[name].sizes}
    monkeypatch.setitem(SHAPES, name, replace(SHAPES[name], sizes=sizes))


def test_a_model_without_a_table_is_rejected():
    with pytest.raises(AttnscopeError, match=r"no table of absolute positions.*RoPE"):
        paper_table(tiny("llama"), [[3, 4, 5, 6]] * 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The papers' part of a run on the bundled model, kept in a folder."""
    place = tmp_path_factory.mktemp("paper") / "run"
    names = []
    return (
        place,
        explain(limit=4, analyses=["yamamoto2023"], out=place, progress=lambda step: names.append(step.name)),
        names,
    )


def test_explain_keeps_the_papers_figures_and_table(run):
    place, tree, names = run
    figures = {f"figure_{number}" for number in (1, 2, 4, 6, 7)}
    assert {"waves", "paper", *figures} <= set(tree.children)
    assert {"figure 6", "paper", "done"} <= set(names)
    assert {path.name for path in place.iterdir()} >= {f"{name}.npz" for name in (*figures, "paper")}
    again = explain(limit=4, analyses=["yamamoto2023"], out=place)
    xr.testing.assert_identical(again["paper"].to_dataset(), tree["paper"].to_dataset())
    assert again.attrs["skipped"] == tree.attrs["skipped"]


def test_a_figure_of_the_paper_in_another_section_is_found_by_its_number(run, tmp_path):
    page = explain_page_of(run[1], tmp_path / "r.html").read_text(encoding="utf-8")
    listed = page.index('<a href="#figure-spectra-by-layer">Figure 5: frequencies by layer</a>')
    assert page.index('id="paper"') < listed < page.index('id="figure-paper_figure_1"')
    plate = page[page.index('<figure id="figure-spectra-by-layer">') :]
    assert plate.index("This is figure 5 of the paper.") < plate.index("</figure>")


def test_heads_that_do_the_same_stand_in(run):
    """The bundled model has sharp heads 0.3 (to the left) and 0.1 (to the right): head(8,9) and head(2,3) there."""
    _, tree, _ = run
    found = tree["figure_7"].to_dataset().set_index(shown="named_head")
    places = {
        name: (int(found["layer"].sel(shown=name)), int(found["head"].sel(shown=name))) for name in ("8.9", "2.3")
    }
    assert places == {"8.9": (0, 3), "2.3": (0, 1)}
    assert found.trace_peak_offset.sel(shown=["8.9", "2.3"], range="near").values.tolist() == [-1, 1]
    said = json.loads(tree.attrs["skipped"])["heads_of_the_papers"]
    assert "head(2,3): 0.1" in said
    assert "head(8,9): 0.3" in said


def test_a_name_of_the_papers_means_one_head_on_a_page(run):
    """The table of published numbers measures the heads that the figures draw."""
    _, tree, _ = run
    drawn = tree["figure_7"].to_dataset().set_index(shown="named_head")
    table = next(node.to_dataset() for node in tree.children.values() if "quantity" in node)
    named = {str(quantity): str(ours) for quantity, ours in zip(table.quantity.values, table.ours.values, strict=True)}
    for name in ("1.1", "2.3", "7.5", "8.9"):
        place = f"{int(drawn['layer'].sel(shown=name))}.{int(drawn['head'].sel(shown=name))}"
        of_name = [ours for quantity, ours in named.items() if quantity.startswith(f"head({name.replace('.', ',')})")]
        assert of_name
        assert all(ours.startswith(f"head {place} here: ") for ours in of_name if ours)


def test_maps_hold_all_weights_of_their_rows(run):
    maps = run[1]["figure_2"].to_dataset()
    assert maps.sizes == {"shown": 4, "query": 15, "rank": 128}
    np.testing.assert_allclose(maps.weight.sum("rank"), 1, atol=1e-5)
    left = maps.isel(shown=maps.named_head.values.tolist().index("8.9"))
    largest = left.key.isel(rank=left.weight.argmax("rank"))
    assert (largest - np.arange(15))[2:].values.tolist() == [-1] * 13


@pytest.fixture(scope="module")
def case(small):
    ids = random_ids(SMALL, 2)
    return Subject(Study(small, ids))


def test_figure_6_shows_the_planted_shifts(case):
    shown = [paper_figures.ShownHead(f"{a}.{b}", *case.head(a, b)) for a, b in ((1, 1), (2, 3))]
    figure = paper_figures.phases(case, shown)
    assert figure.completion.values.tolist() == ["minimal", "lapack"]
    assert figure.named_head.values.tolist() == ["1.1", "2.3"]
    offsets = [HEADS[1, 1][0], HEADS[2, 3][0]]
    np.testing.assert_allclose(-figure.line_shift.sel(completion="minimal"), offsets, atol=0.1)


def test_chemistry_albert(models):
    with threadpool_limits(1):
        tree = explain(models / "rxnmapper-albert", REACTIONS, window=96, limit=4, analyses=["yamamoto2023"])
    found = tree["paper"].to_dataset()
    assert tree["figure_6"].sizes["shown"] == 4
    assert found.ours.sel(row=1).item() == "50.03%"
    assert value(found, 2) == pytest.approx(86.2, abs=0.05)
    assert value(found, 4) == 48
    assert "peaks: 48, 42" in found.ours.sel(row=4).item()
    assert value(found, 12) > 0.5
    assert verdicts(found)[4] == "not comparable"


def test_roberta_of_the_real_shape(monkeypatch):
    """All its positions, layers and heads, which are narrower; few words, of which the table reads one a position."""
    with torch.device("meta"):
        assert is_shaped_like(RobertaForMaskedLM(config_of(FULL)), "roberta-base")
    sizes = replace(FULL, vocabulary=2000, head_width=16)
    with threadpool_limits(1):
        model = planted_roberta(sizes, HEADS | {(7, 5): (2, 0.5)})  # well above a lean of a fifth
        take_for_the_real_one(model, "roberta-base", monkeypatch)
        found = paper_table(model, random_ids(sizes, 2), published_as="roberta-base")
    check_position_table(found, FULL)
    assert [value(found, row) for row in (9, 10, 11, 13)] == [-1, 1, -2, -2]
    assert value(found, 12) > 0
    assert value(found, 15) == 10
    agree = {row for row, verdict in verdicts(found).items() if verdict == "agrees"}
    assert {1, 2, 4, 5, 6, 9, 10, 11, 12, 13, 15} <= agree
    assert {"not comparable", "same shape, other weights"}.isdisjoint(verdicts(found).values())


def test_a_head_planted_to_the_other_side_differs():
    model = planted_roberta(SMALL, {(1, 1): (2, 0.25), (2, 3): (-1, 4.0)})
    found = paper_table(model, random_ids(SMALL, 2), published_as="roberta-base")
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
        found = paper_table(small, random_ids(SMALL, 2), published_as="roberta-base")
        small.get_submodule(name).weight.copy_(kept)
    assert verdicts(found)[1] == "differs"
    assert found.note.sel(row=1).item().startswith("matches with: all rows from 0")


def test_only_the_hub_or_the_user_knows_whose_weights_they_are():
    assert published_name("FacebookAI/roberta-base", {"revision": "e2da8e2f"}) == "roberta-base"
    assert published_name("roberta-base", {"sha256": "e2da8e2f"}) is None  # a folder of that name
    assert published_name("someone/roberta-base", {"revision": "e2da8e2f"}) is None
    with pytest.raises(AttnscopeError, match="--analyses is yamamoto2023='bert': expected roberta-base or gpt2"):
        requested_analyses(["yamamoto2023=bert"])
