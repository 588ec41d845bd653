"""The Transformers: against PyTorch's layers, as captured by the lens, with positions that end or do not."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from attnscope import AttnscopeError
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.positions import sinusoidal_table
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope_lineage.loss import summed_loss
from tests.kernels.largest_tensor import Largest
from tests.packages.lineage.models.small_lineage import LABELS, MASK, SOURCE, TRANSFORMERS, small


def attention_of_pytorch(ours):
    theirs = nn.MultiheadAttention(16, 2, batch_first=True)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([one.weight for one in projections]),
            "in_proj_bias": torch.cat([one.bias for one in projections]),
            "out_proj.weight": ours.out_proj.weight,
            "out_proj.bias": ours.out_proj.bias,
        }
    )
    return theirs


def layer_of_pytorch(ours, *, decoder, before):
    """A layer of `torch.nn.Transformer` with the same weights."""
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    theirs = kind(16, 2, 24, 0.0, batch_first=True, norm_first=before)
    theirs.self_attn = attention_of_pytorch(ours.self_attention)
    theirs.linear1, theirs.linear2 = ours.feed_forward.up, ours.feed_forward.down
    norms = [ours.around_self.norm, ours.around_cross.norm] if decoder else [ours.around_attention.norm]
    for number, norm in enumerate([*norms, ours.around_feed_forward.norm], 1):
        setattr(theirs, f"norm{number}", norm)
    if decoder:
        theirs.multihead_attn = attention_of_pytorch(ours.cross_attention)
    return theirs.eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_the_layers_are_those_of_pytorch(norm):
    model = small(f"sinusoidal-{norm}")
    before = norm == "pre"
    padding = MASK == 0
    table = sinusoidal_table(5, 16).float()
    states = model.embedding(SOURCE) * 4 + table
    for layer in model.encoder.layers:
        theirs = layer_of_pytorch(layer, decoder=False, before=before).train()  # the fused path zeros padding
        states = theirs(states, src_key_padding_mask=padding)
    states = model.encoder.norm(states)
    found = model.encoder(SOURCE, MASK).last_hidden_state
    assert_close(found[MASK.bool()], states[MASK.bool()], atol=1e-5, rtol=1e-5)

    read = model.decoder_inputs(LABELS)
    target = model.embedding(read) * 4 + table[:4]
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for layer in model.decoder.layers:
        theirs = layer_of_pytorch(layer, decoder=True, before=before)
        target = theirs(target, states, tgt_mask=causal, memory_key_padding_mask=padding)
    logits = model.decoder.norm(target) @ model.embedding.weight.T
    assert_close(model(SOURCE, MASK, labels=LABELS).logits, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [f"{a}-{b}" for a, b in TRANSFORMERS])
@torch.no_grad()
def test_the_lens_sees_every_layer(name):
    model = small(name)
    verify(model, {"input_ids": SOURCE[:1], "decoder_input_ids": torch.tensor([[1, 5, 6, 7]])})
    model.set_attn_implementation("eager")
    eager = model(SOURCE, MASK, labels=LABELS)
    model.set_attn_implementation("sdpa")
    assert_close(model(SOURCE, MASK, labels=LABELS).logits, eager.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["alibi", "t5"])
@torch.no_grad()
def test_attention_that_would_lose_the_positions_is_rejected(positions):
    model = small(f"{positions}-pre")
    model.config._attn_implementation = "flash_attention_2"  # set_attn_implementation asks for a GPU first
    with pytest.raises(AttnscopeError, match="'flash_attention_2' ignores the bias of positions 'alibi' and 't5'"):
        model(SOURCE, labels=LABELS)


@pytest.mark.parametrize("positions", ["alibi", "t5"])
def test_what_positions_add_is_measured_by_offset_and_trained_for_each_pair(positions):
    model, n = small(f"{positions}-pre"), 1024
    with torch.no_grad():
        for side in (model.encoder, model.decoder):
            for weight in side.relative.parameters():
                weight.normal_(generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(3, 20, (1, n), generator=torch.Generator().manual_seed(1))
    kinds = []

    def measured(site, call):
        kinds.append((site.kind, type(call.bias)))
        return measure(call, Need(entropy=True, bins=(9,)))[0]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what other threads make is not noted
    try:
        with torch.inference_mode(), watching(model, measured), Largest() as largest:
            found = model(tokens, labels=tokens).logits
    finally:
        torch.set_num_threads(threads)
    with torch.no_grad():
        assert_close(found, model(tokens, labels=tokens).logits, atol=2e-4, rtol=1e-4)
    assert set(kinds) == {("self", OffsetBias), ("causal", OffsetBias), ("cross", type(None))}
    assert largest.numbers < n * n / 2
    kinds.clear()
    with watching(model, measured):  # a gradient may be asked for
        model(tokens[:, :5], labels=tokens[:, :5])
    assert ("self", torch.Tensor) in kinds


def test_learned_positions_end_and_others_do_not():
    long = torch.randint(3, 20, (1, 40))
    with pytest.raises(AttnscopeError, match="found 40 positions; the table was trained for 32"):
        small("learned-pre")(long, labels=LABELS[:1])
    for name in ("sinusoidal-pre", "rope-pre", "alibi-pre", "t5-pre", "none-pre"):
        assert small(name)(long, labels=LABELS[:1]).loss.isfinite()


@torch.no_grad()
def test_a_masked_language_model_is_an_encoder_with_its_table_turned_round():
    torch.manual_seed(0)
    model = EncoderForMaskedLM(
        EncoderConfig(vocab_size=20, width=16, heads=2, feed_forward=24, encoder_layers=2, positions="learned")
    ).eval()
    labels = torch.where(MASK == 1, SOURCE, -100)
    states = model.encoder(SOURCE, MASK).last_hidden_state
    found = model(SOURCE, MASK, labels=labels)
    assert_close(found.logits, states @ model.embedding.weight.T)
    assert_close(summed_loss(model, SOURCE, MASK, labels) / MASK.sum(), found.loss)
    assert_close(model(SOURCE, MASK, labels, num_items_in_batch=2 * MASK.sum()).loss, found.loss / 2)
    with pytest.raises(AttnscopeError, match="found argument 'output_hidden_states'"):
        model(SOURCE, MASK, output_hidden_states=True)
    verify(model, {"input_ids": SOURCE[:1]})
