"""The recurrent models against steps written out, and as one call of one head on transformers' registry."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from attnscope import AttnscopeError
from attnscope.capture.watching import watching
from attnscope.kernels.reference import attend
from tests.packages.lineage.models.small_lineage import LABELS, MASK, SOURCE, small

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


SCORES = ["dot", "scaled_dot", "bilinear", "additive"]
READ = torch.tensor([[1, 10, 11, 2], [1, 12, 13, 14], [1, 15, 2, 0]])


def watched(model, **given):
    """What the model returns, and its calls with their weights, written out."""
    seen = []

    def observe(site, call):
        output, weights = attend(call.query, call.key, call.value, call.mask, call.scale, bias=call.bias)
        seen.append((site, call, weights))
        return output

    with torch.no_grad(), watching(model, observe):
        return model(**given), seen


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attention", SCORES)
@torch.no_grad()
def test_the_captured_weights_are_those_of_the_steps(attention, cell):
    model = small(f"{attention}-{cell}").double()
    given = {"input_ids": SOURCE, "attention_mask": MASK, "labels": LABELS}
    own = model(**given)
    found, [(site, call, weights)] = watched(model, **given)
    assert (site.index, site.name, site.kind) == (0, "decoder.attention", "cross")
    assert call.mask is not None
    assert not call.causal
    assert_close(weights, own.cross_attentions[0], atol=1e-10, rtol=0)
    assert_close(found.logits, own.logits, atol=1e-10, rtol=0)
    assert torch.equal(model(**given).logits, own.logits)  # afterwards it is as it was


@pytest.mark.parametrize("attention", SCORES)
@torch.no_grad()
def test_queries_keys_and_scale_are_the_score_functions_own(attention):
    model = small(f"{attention}-gru").double()
    _, [(_, call, _)] = watched(model, input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=READ)
    annotations = model.encoder(SOURCE, MASK).last_hidden_state
    products = call.scale * call.query[:, 0] @ call.key[:, 0].mT
    assert torch.equal(call.value[:, 0], annotations)
    if attention == "additive":  # which no product of queries and keys gives
        assert not products.any()
        assert call.bias.shape == (3, 1, 4, 5)
        return
    assert call.bias is None
    states = call.query[:, 0]
    expected = {
        "dot": lambda: states @ annotations.mT,
        "scaled_dot": lambda: states @ annotations.mT / 12**0.5,
        "bilinear": lambda: states @ model.decoder.score.weight.weight @ annotations.mT,
    }[attention]()
    assert_close(products, expected, atol=1e-12, rtol=1e-12)
