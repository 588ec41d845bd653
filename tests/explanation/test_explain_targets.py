"""`explain` of encoder-decoders: the decoder reads the target, and attnscope's own models show their positions."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.verify import position_table_length
from attnscope.explanation.analyses import position_content as _position_content
from attnscope.explanation.report import rank_explanations
from attnscope.explanation.study import equal_windows, with_targets
from attnscope.explanation.tables import position_tables, replaced_positions
from attnscope.kernels.positions import sinusoidal_table
from attnscope.models.configs import TransformerConfig
from attnscope.read.texts import Corpus
from attnscope_lineage.models.transformer import TransformerForConditionalGeneration
from attnscope_yamamoto2023.analyses import OF_POSITIONS
from tests.explanation.analyses_of_windows import of_windows
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny

position_content = of_windows(_position_content.position_content)

TEXT = "a hat and a bat are on the mat but the cat sat on the hat of a man who ran after the bat in the end. "
TARGET = "der hut und die maus liegen auf der matte aber die katze sitzt auf dem hut des mannes. " * 2
LENGTH = 16


def ours(positions):
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig(vocab_size=64, positions=positions, max_position_embeddings=32, **sizes)
    return TransformerForConditionalGeneration(config).eval()


def explained(model, **given):
    options = {"targets": [TARGET], "tokenizer": small_tokenizer(), "window": LENGTH, "band": 3, **given}
    return attnscope.explain(model, [TEXT], limit=3, device="cpu", **options)


def windows_of(model, *, target=True):
    loaded = LoadedModel(model, small_tokenizer(), "small", {})
    windows = equal_windows(Corpus.from_sources([TEXT]), loaded, LENGTH, 3)
    return with_targets(windows, Corpus.from_sources([TARGET]), loaded, LENGTH) if target else windows


def cut(tokenizer, text):
    """Three windows of full length with </s> at the end."""
    ids = tokenizer(text).input_ids[:-1]
    return [[*ids[first : first + LENGTH - 1], 2] for first in range(0, 3 * (LENGTH - 1), LENGTH - 1)]


@pytest.mark.parametrize("kind", ["bart", "ours"])
def test_profiles_are_those_of_the_weights_with_target_text(kind):
    model = small_model("bart") if kind == "bart" else ours("learned")
    found = position_content(model, windows_of(model), band=3, draws=4)
    tokenizer = small_tokenizer()
    read = [[model.config.decoder_start_token_id, *ids[:-1]] for ids in cut(tokenizer, TARGET)]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(
            input_ids=torch.tensor(cut(tokenizer, TEXT)), decoder_input_ids=torch.tensor(read), output_attentions=True
        )
    expected = {"self": own.encoder_attentions, "causal": own.decoder_attentions}
    for name, weights in expected.items():
        rows = np.flatnonzero(found.layer_kind.values == name)
        assert len(rows) == len(weights)
        for row, layer in zip(rows, weights, strict=True):
            for offset in range(-3, 1 if name == "causal" else 4):
                mean = layer.diagonal(offset, -2, -1).mean((0, 2)).numpy()
                np.testing.assert_allclose(found.profile.values[row, :, offset + 3], mean, atol=1e-5)


def test_a_target_goes_through_all_analyses():
    """Word changes reach the words that the decoder reads, and position changes its table."""
    found = explained(ours("sinusoidal"), interventions=True, analyses=OF_POSITIONS)
    assert found.attrs["decoder"] == "The decoder read the target text."
    assert "queries and keys are in different texts" in json.loads(found.attrs["skipped"])["cross_attention"]
    assert len(json.loads(found.attrs["signature"])["target"]["sha256"]) == 64
    assert {"position_spectrum", "position_cca", "verdict"} <= set(found.children)
    kinds = found["position_content"].to_dataset().layer_kind
    assert {row["attention"] for row in rank_explanations(found)} == {"self", "causal"}
    assert all(row["attention"] == kinds.sel(layer=row["layer"]) for row in rank_explanations(found))
    changed = found["interventions"].to_dataset()
    assert changed.layer_kind.values.tolist() == ["self", "causal"]
    change = np.abs(changed.profile_after - changed.profile_before).max(("head", "offset"))
    assert float(change.sel(change=["words-shuffled", "positions-zero"]).min()) > 1e-4


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (lambda: tiny("bert"), {}, r"cannot read targets. Leave out targets \(--target\)"),
        (lambda: small_model("bart"), {"targets": ["der hut"]}, "found 0 full windows of 16 tokens in the target"),
        (lambda: small_model("bart"), {"analyses": ["yamamoto2023"]}, "leave out either it or the target"),
    ],
)
def test_unsuitable_models_and_targets_are_rejected(model, given, message):
    with pytest.raises(AttnscopeError, match=message):
        explained(model(), **given)


def test_position_tables_includes_a_computed_sinusoidal_table():
    model = ours("sinusoidal")
    tables = position_tables(model)
    assert [table.name for table in tables] == [
        f"{side}.add_positions.position_embeddings" for side in ("encoder", "decoder")
    ]
    for table in tables:
        np.testing.assert_array_equal(table.rows, sinusoidal_table(32, 16).numpy())
        assert table.scheme == "sinusoidal"
    assert position_table_length(model) is None  # it has no end
    given = {"input_ids": torch.arange(3, 43)[None], "decoder_input_ids": torch.arange(3, 43)[None]}
    with torch.no_grad():
        before = model(**given).logits
        with replaced_positions(model, {tables[1].name: np.zeros((40, 16))}):
            assert not torch.allclose(model(**given).logits, before)
        torch.testing.assert_close(model(**given).logits, before)
    assert not any("position" in name for name in model.state_dict())
