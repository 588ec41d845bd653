"""What page and terminal say of the table of heads: nothing of columns that a model does not have."""

import io

import pytest
import torch
from rich.console import Console

import attnscope
from attnscope.explanation.analyses.verdict import ESTIMATED, zero_note
from attnscope.explanation.report import rank_explanations, report
from attnscope.report.render import print_report
from attnscope.results.figures.explain import scheme_kernel
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.results.page.planted_explanation import explain_page_of
from tests.tiny_models import tiny

TEXTS = ["a hat and a bat are on the mat but the cat sat on the hat of a man who ran after the bat in the end. " * 3]
OF_READINGS = ("within half a token", "other heads whose predictions", "both predictions match")


def explained(model):
    return attnscope.explain(model, TEXTS, tokenizer=small_tokenizer(), window=24, band=5, limit=4)


def leaning():
    """A random Llama whose heads prefer an offset: its queries and keys are made large."""
    model = tiny("llama")
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj")):
                weights.normal_(std=0.02)
                weights[:, 0] = 3.0
            elif "embed_tokens" in name:
                weights[:, 0] = 1.0
    return model


@pytest.fixture(scope="module")
def trees():
    return {"llama": explained(leaning()), "random llama": explained(tiny("llama"))}


def printed(tree):
    out = io.StringIO()
    print_report(report(tree), Console(file=out, width=80), legend=True)
    return " ".join(out.getvalue().split())


def test_a_rotary_model_has_no_readings_and_chance_is_that_of_random_phases(trees):
    said = printed(trees["llama"])
    assert not [words for words in OF_READINGS if words in said]
    assert "how often with random phases of the rotation" in said
    assert ("treat heads as independent" in said) == ("by chance, p" in said)


def test_of_a_random_model_no_head_is_predicted_and_nothing_is_explained(trees, tmp_path):
    rows = rank_explanations(trees["random llama"])
    assert not any(row["prefers"] for row in rows)
    assert {(row["kernel_agrees"], row["kernel_share"], row["position_share"]) for row in rows} == {(None, None, None)}
    assert {row["offset_of_kernel"] for row in rows} == {None}  # every curve has a largest value
    kernel = trees["random llama"]["scheme_kernel"].to_dataset()
    titles = [axes.get_title(loc="left") for axes in scheme_kernel(kernel, [(0, 0), (1, 0)]).axes]
    assert {title.split("\n")[1] for title in titles if title} == {"weights none, scheme none"}
    page = explain_page_of(trees["random llama"], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Favoured offsets and position shares" not in page
    assert "No head favours an offset: the profiles below are flat" in page
    for said in (page, printed(trees["random llama"])):
        assert "alone predicts" not in said


@pytest.mark.parametrize("estimate", ESTIMATED)
@pytest.mark.parametrize(("offset", "noted"), [(0.4, True), (-0.02, True), (-1.0, False), (None, False)])
def test_an_estimate_of_about_0_may_be_a_token_that_meets_itself(estimate, offset, noted):
    row = dict.fromkeys(ESTIMATED)
    assert ("match themselves" in zero_note([row, row | {estimate: offset}])) == noted
