"""Models that overflow or that an analysis does not fit: rejected by text and layer, or skipped by name."""

import json

import pytest
import torch
import transformers as T
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.explanation.analyses import interventions as _interventions
from attnscope.explanation.analyses import position_content as _position_content
from attnscope.explanation.study import Study
from attnscope_yamamoto2023.analyses import OF_POSITIONS
from tests.explanation.analyses_of_windows import of_windows
from tests.planted_models import overflowing_bert

# --- no analysis takes in a text on which the model overflows: it is refused by text and layer ---


interventions = of_windows(_interventions.interventions)
position_content = of_windows(_position_content.position_content)

STRANGE = 59
WINDOWS = [[5, 6, 7, 8, 9, 10], [8, 7, 11, 12, 6, 5], [9, 12, STRANGE, 5, 6, 7], [5, 5, 9, 6, 7, 8]]
REFUSED = r"^window 3: layer 0 \(.*\) gives NaN or infinity\. Check the weights of the model and the tokens"


@pytest.mark.parametrize(
    "analyse",
    [
        lambda model: Study(model, WINDOWS, band=2).evidence,
        lambda model: position_content(model, WINDOWS, band=2),
        lambda model: position_content(model, WINDOWS, band=2, method="exact"),
        lambda model: interventions(model, WINDOWS, ["words-repeated"], band=2),
    ],
)
def test_the_text_is_named(analyse):
    with pytest.raises(AttnscopeError, match=REFUSED):
        analyse(overflowing_bert(STRANGE, vocabulary=60))


def test_explain_names_the_file_and_the_place(tmp_path):
    loaded = load_model(MODEL, device="cpu")
    ids = loaded.tokenizer("Bread").input_ids[1:2]
    (tmp_path / "tides.txt").write_text("The tide comes in and goes out. " * 4)
    (tmp_path / "z.txt").write_text("Bread rises in the tide and goes out. " * 4)
    with pytest.raises(AttnscopeError, match=r"window \d+ \(.*z\.txt from character 0\): layer 0 \(enc.*\) gives NaN"):
        attnscope.explain(overflowing_bert(ids[0]), tmp_path, tokenizer=loaded.tokenizer, window=16, band=2)


# --- weights of which an analysis cannot be: it is skipped and named, and the others are there ---


def constant_table(model):
    model.bert.embeddings.position_embeddings.weight[:] = 0.5


def no_queries(model):
    model.bert.encoder.layer[1].attention.self.query.weight.zero_()


def nothing_at_all(model):
    for weight in model.parameters():
        weight.zero_()


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        (constant_table, {"position_pca": "the table is the same at every position"}),
        (no_queries, {"spectra": "every query of layer 1 is equal"}),
        (nothing_at_all, {"wave_removal": "the cross-spectra are 0"}),
    ],
)
def test_an_analysis_is_skipped_and_the_rest_stands(change, skipped):
    torch.manual_seed(0)
    config = T.BertConfig(
        vocab_size=640,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    model = T.BertForMaskedLM(config).eval()
    with torch.no_grad():
        change(model)
    found = attnscope.explain(
        model, tokenizer=AutoTokenizer.from_pretrained(MODEL), limit=2, window=32, analyses=OF_POSITIONS
    )
    reasons = json.loads(found.attrs["skipped"])
    for analysis, reason in skipped.items():
        assert reasons[analysis].startswith(reason)
    assert {"cross_spectrum", "phase_map", "position_content"} <= set(found.children)
