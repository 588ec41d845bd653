"""What stands around attention is found in every family by its numbers."""

import pytest
import torch
import transformers as T

from attnscope.explanation.stream import fold_of
from attnscope_lineage.weights.blocks import find_blocks, record
from tests.packages.lineage.models.small_lineage import SOURCE, small
from tests.tiny_models import inputs, tiny

FORMS = {
    **dict.fromkeys(["bert", "roberta", "albert", "distilbert", "electra", "bart", "marian"], "normalised sum"),
    **dict.fromkeys(["deberta", "deberta_v2"], "normalised sum"),
    **dict.fromkeys(["modernbert", "gpt2", "opt", "llama", "mistral", "gpt_oss", "qwen3", "t5"], "sum"),
    "gemma2": "normalised attention",
    "gpt_neox": None,  # attention and feed-forward side by side
}


def one_text(family):
    return {name: tensor[:1] for name, tensor in inputs(family, padded=False)[0].items()}


@pytest.mark.parametrize("family", FORMS)
def test_the_form_of_every_family_is_found_and_its_parts_sum_to_what_the_block_gives(family):
    model, text = tiny(family), one_text(family)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "orm" in name:  # gains and shifts that do something
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    blocks = find_blocks(model, text)
    assert {block.form for block in blocks} == {FORMS[family]}
    records, _ = record(model, text, blocks, "the text")
    for one in records:
        assert bool(one.reason) == (FORMS[family] is None)
        if not one.reason:
            assert one.given.shape == one.residual.shape


@pytest.mark.parametrize("name", ["additive-gru", "dot-lstm"])
def test_a_recurrent_decoder_has_no_projection_and_no_block(name):
    blocks = find_blocks(small(name), {"input_ids": SOURCE[:1], "decoder_input_ids": torch.tensor([[1, 10, 11]])})
    assert [block.form for block in blocks] == [None]
    assert blocks[0].output is None
    assert "no linear layer reads the concatenated output" in blocks[0].reason


@pytest.mark.parametrize(
    ("norm", "is_centred"),
    [
        (torch.nn.LayerNorm(6), True),
        (torch.nn.LayerNorm(6, elementwise_affine=False), True),
        (torch.nn.RMSNorm(6), False),
        (T.models.t5.modeling_t5.T5LayerNorm(6), False),
        (T.models.gemma2.modeling_gemma2.Gemma2RMSNorm(6), False),
    ],
)
def test_a_norm_is_known_by_what_it_gives(norm, is_centred):
    torch.manual_seed(0)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, 0.5, 1.0)
    given, found = torch.randn(2, 4, 6) + 1, fold_of(norm, 6)
    with torch.no_grad():
        assert found.centred == is_centred
        parts = torch.randn(2, 4, 6)
        scale, shift = found.frozen(norm, given, norm(given))
        total = found.of(parts) * scale + found.of(given - parts) * scale + shift
        torch.testing.assert_close(total, norm(given).to(total), atol=1e-5, rtol=1e-4)


def test_what_is_no_norm_is_none():
    assert fold_of(torch.nn.Tanh(), 6) is None
