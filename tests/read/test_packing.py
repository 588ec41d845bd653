"""Encoded batches: packed documents are measured apart, and all else that a forward pass takes goes into it."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.measure.stored import notes_of

TEXTS = [
    "Once upon a time, there was a little girl.",
    "She loved to play.",
    "One day, she saw a big, red ball in the sky.",
]


@pytest.fixture(scope="module")
def rows():
    return AutoTokenizer.from_pretrained(MODEL)(TEXTS)["input_ids"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=8
    )
    return LlamaForCausalLM(config).eval()


def packed(rows):
    """The documents in one row: its tokens, positions, documents, and which pairs may attend."""
    documents = np.repeat(range(len(rows)), [len(row) for row in rows])
    positions = [place for row in rows for place in range(len(row))]
    pairs = torch.tensor(np.equal.outer(documents, documents)).tril()
    return {"input_ids": torch.tensor([[token for row in rows for token in row]])}, positions, documents, pairs


FORMS = {
    "positions": lambda positions, *_: {"position_ids": [positions]},
    "named": lambda _, documents, __: {"seq_idx": torch.tensor(documents)[None]},
    "numbered mask": lambda _, documents, __: {"attention_mask": [documents + 1]},
    "mask": lambda *given: {"attention_mask": given[2][None, None]},
    "square": lambda *given: {"attention_mask": given[2]},
    "added mask": lambda *given: {"attention_mask": torch.where(given[2], 0.0, -torch.inf)[None]},
}  # fmt: skip


@pytest.fixture(scope="module")
def apart(model, rows):
    return attnscope.scan(model, rows, tokenizer=MODEL)


@pytest.mark.parametrize("form", [*FORMS, "mixing"])
def test_packed_documents_have_the_numbers_that_they_have_apart(model, rows, apart, form):
    tokens, positions, *more = packed(rows)
    if form == "mixing":  # a mask of padding alone lets documents mix, and the positions tell them apart
        given = {"position_ids": [positions], "attention_mask": torch.ones_like(tokens["input_ids"])}
    else:
        given = FORMS[form](positions, *more)
    found = attnscope.scan(model, tokens | given, tokenizer=MODEL)
    for name in apart.data_vars:
        np.testing.assert_allclose(found[name], apart[name], atol=2e-5, err_msg=str(name))
    assert found.source.values.tolist() == [f"text 1, document {number}" for number in (1, 2, 3)]
    told = notes_of(found).get("mixed", "")
    assert ("each document was measured separately" in told) == (form in {"named", "mixing"})


def bert(positions=64):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=positions, initializer_range=0.3,
    )  # fmt: skip
    return BertModel(config).eval()


@pytest.mark.parametrize("form", ["token_type_ids", "position_ids", "attention_mask", "padded on the left"])
def test_arguments_of_the_forward_pass_are_passed_on(rows, form):
    model = bert()
    ids = torch.tensor([rows[0]])
    size = ids.shape[1]
    later = torch.arange(size)[None] >= size // 2
    prefix = ~later.expand(size, -1) | torch.eye(size, dtype=torch.bool)
    more = {
        "token_type_ids": {"token_type_ids": later.long()},
        "position_ids": {"position_ids": 2 * torch.arange(size)[None]},
        "attention_mask": {"attention_mask": (prefix | later.T)[None, None]},
    }.get(form, {})
    given = {"input_ids": ids, **more}
    if form == "padded on the left":
        short = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids[:, 3:]], 1)
        given = {"input_ids": short, "attention_mask": (short > 0).long()}
        ids = ids[:, 3:]
    found = attnscope.weights(model, given, tokenizer=MODEL)
    model.set_attn_implementation("eager")
    if "attention_mask" in more:
        more = {"attention_mask": torch.zeros(1, 1, size, size).masked_fill(~more["attention_mask"], -1e9)}
    eager = model(ids, **more, output_attentions=True).attentions
    for layer, weights in enumerate(eager):
        np.testing.assert_allclose(found[layer], weights[0].detach(), atol=1e-5)
    batch = attnscope.scan(model, [given, {"input_ids": ids} | more], tokenizer=MODEL)
    np.testing.assert_allclose(batch.entropy[0], batch.entropy[1], atol=1e-5)


def test_more_than_ids_is_rejected_where_it_is_not_read(rows):
    given = {"input_ids": [rows[0]], "token_type_ids": [[1] * len(rows[0])]}
    with pytest.raises(AttnscopeError, match="'token_type_ids' with the token ids, which only scan and weights use"):
        attnscope.explain(bert(), given, tokenizer=MODEL)


@pytest.mark.parametrize("pad", ["[PAD]", "[SEP]"])
def test_padding_that_no_mask_names_is_noted(rows, pad):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.pad_token if pad == "[PAD]" else tokenizer.eos_token or tokenizer.sep_token
    padded = [[*rows[0], *[tokenizer.pad_token_id] * 3], rows[1]]
    found = attnscope.scan(MODEL, padded, tokenizer=tokenizer)
    assert notes_of(found)["ends"].startswith("1 row of 2 without an attention_mask had padding tokens at an end")
    assert "ends" not in notes_of(attnscope.scan(MODEL, rows, tokenizer=MODEL))
