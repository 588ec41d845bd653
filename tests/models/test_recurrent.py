"""The recurrent models against steps written out: what the fixed vector is, and what a context is made of."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers.modeling_outputs import BaseModelOutput

from attnscope import AttnscopeError
from tests.models.lineage import small

IDS = torch.tensor([[3, 4, 5, 2]])


def by_hand(model, source, tokens):
    """Logits of a GRU decoder, equation by equation, for one sentence."""
    decoder = model.decoder
    h = model.encoder(source[None]).last_hidden_state[0]
    half = h.shape[1] // 2
    fixed = torch.cat([h[-1, :half], h[0, half:]])  # last state of each direction
    s, c = torch.tanh(decoder.first_state(fixed)), fixed
    logits, rows = [], []
    for token in tokens:
        y = model.embedding.weight[token]
        s = decoder.cell(torch.cat([y, c]), s)
        if decoder.score is not None:
            alpha = decoder.score(s[None, None], h[None])[0, 0].softmax(0)
            c = sum(a * one for a, one in zip(alpha, h, strict=True))
            rows.append(alpha)
        read = torch.tanh(decoder.readout(torch.cat([s, c, y])))
        logits.append(model.embedding.weight @ read)
    return torch.stack(logits), rows


@pytest.mark.parametrize("attention", ["none", "dot", "scaled_dot", "bilinear", "additive"])
@torch.no_grad()
def test_the_decoder_is_its_equations(attention):
    model = small(f"{attention}-gru")
    tokens = [1, 7, 8, 9]
    found = model(IDS, decoder_input_ids=torch.tensor([tokens]))
    logits, rows = by_hand(model, IDS[0], tokens)
    assert_close(found.logits[0], logits, atol=1e-5, rtol=1e-5)
    if rows:
        assert_close(found.cross_attentions[0][0, 0], torch.stack(rows), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM])
@torch.no_grad()
def test_annotations_read_the_source_both_ways(cell):
    model = small("none-gru" if cell is nn.GRU else "none-lstm")
    h = model.encoder(torch.tensor([[3, 4, 5, 2], [6, 2, 0, 0]]), torch.tensor([[1] * 4, [1, 1, 0, 0]]))[0]
    one_way = cell(8, 6, batch_first=True)
    one_way.load_state_dict({k: v for k, v in model.encoder.network.state_dict().items() if "reverse" not in k})
    other_way = cell(8, 6, batch_first=True)
    reverse = {k.removesuffix("_reverse"): v for k, v in model.encoder.network.state_dict().items() if "reverse" in k}
    other_way.load_state_dict(reverse)
    for row, ids in enumerate([[3, 4, 5, 2], [6, 2]]):
        vectors = model.embedding(torch.tensor([ids]))
        assert_close(h[row, : len(ids), :6], one_way(vectors)[0][0])
        assert_close(h[row, : len(ids), 6:], other_way(vectors.flip(1))[0][0].flip(0))
    assert h[1, 2:].abs().max() == 0


def test_padding_must_follow_the_text():
    mask = torch.tensor([[0, 0, 1, 1]])
    for model in (small("none-gru"), small("dot-lstm")):
        with pytest.raises(AttnscopeError, match="expected it at the end of each text: pad on the right"):
            model(IDS, mask, labels=IDS)
        with pytest.raises(AttnscopeError, match="attention_mask has padding before a token"):
            model.generate(IDS, attention_mask=mask, max_new_tokens=2)


@torch.no_grad()
def test_the_fixed_vector_is_all_that_the_decoder_sees():
    model = small("none-gru")
    states = model.encoder(IDS).last_hidden_state
    other = states.clone()
    other[0, 1:3] = 9.0  # between the ends, which make the vector
    for annotations, same in ((other, True), (states + 1, False)):
        logits = model(encoder_outputs=BaseModelOutput(annotations), decoder_input_ids=torch.tensor([[1, 7]])).logits
        expected = model(encoder_outputs=BaseModelOutput(states), decoder_input_ids=torch.tensor([[1, 7]])).logits
        assert torch.equal(logits, expected) == same
    attentive = small("dot-gru")
    logits = [
        attentive(encoder_outputs=BaseModelOutput(one), decoder_input_ids=torch.tensor([[1, 7]])).logits
        for one in (states, other)
    ]
    assert not torch.allclose(*logits)
