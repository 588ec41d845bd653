"""A head of every position scheme, of which it is known what position adds to its scores and what words do."""

import math

import numpy as np
import torch
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2Model, T5Config, T5EncoderModel

from attnscope.kernels.positions import pair_columns, t5_buckets
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM

LENGTH, WORDS = 32, 4
OFFSETS = np.arange(1 - LENGTH, LENGTH)
WAVES = (3, 5, 7, 11)  # cycles per LENGTH
SIZE = 32  # of a head
TURNING = (0, 1, 2, 3, 4)  # pairs of a rotary head that hold its constant query and key


def texts():
    """Every phase of a text that repeats its words: all texts together have no word at any place more than another."""
    return [[(start + i) % WORDS + 3 for i in range(LENGTH)] for start in range(WORDS)]


def same_word(weight):
    """Scores of a head that looks at its own word, over the offsets."""
    return weight * (OFFSETS % WORDS == 0)


def planted(scheme, offset, strength, word):
    """A one-layer model, and what position adds to the scores of its head 0 at each of OFFSETS.

    Words add ``word`` where query and key are the same, and nothing else is in the scores.
    """
    return {
        "learned": _learned,
        "sinusoidal": _sinusoidal,
        "rope": _rope,
        "t5": _t5,
        "alibi": _alibi,
        "deberta": _deberta,
        "none": _none,
    }[scheme](offset, strength, word)


def _waves(offset, strength):
    return strength * sum(np.cos(2 * np.pi * f * (OFFSETS - offset) / LENGTH) for f in WAVES)


def _bert(rows, position, word):
    """Words in the first columns of X and rows of the table in the others; `position` is their matrix of scores."""
    size = WORDS + rows.shape[1]
    config = BertConfig(
        vocab_size=3 + WORDS,
        hidden_size=2 * size,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=LENGTH,
        type_vocab_size=1,
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    with torch.no_grad():
        embeddings = model.embeddings
        _plant_words(embeddings.word_embeddings.weight, size)
        embeddings.token_type_embeddings.weight.zero_()
        table = embeddings.position_embeddings.weight.zero_()
        # each vector also with its negative: LayerNorm then only multiplies all rows by one number
        table[:, WORDS:size], table[:, size + WORDS :] = rows, -rows
        square = 2 * (1 + float(rows[0].square().sum())) / (2 * size)  # variance of a row
        gain = math.sqrt(2 * size) * square
        attention = model.encoder.layer[0].attention.self
        for projection in (attention.query, attention.key):
            torch.nn.init.zeros_(projection.weight)
            torch.nn.init.zeros_(projection.bias)
        scores = torch.block_diag(word * torch.eye(WORDS), position) * gain
        attention.query.weight[:size, :size] = torch.eye(size)
        attention.key.weight[:size, :size] = scores
    return model


def _plant_words(table, half):
    table.zero_()
    for word in range(WORDS):
        table[3 + word, word], table[3 + word, half + word] = 1.0, -1.0


def _learned(offset, strength, word):
    """A row of its own for each position: any matrix of scores can be had."""
    by_offset = _waves(offset, strength)
    place = torch.arange(LENGTH)
    scores = torch.from_numpy(by_offset)[place[None] - place[:, None] + LENGTH - 1].float()
    return _bert(torch.eye(LENGTH), scores, word), by_offset


def _sinusoidal(offset, strength, word):
    angle = 2 * torch.pi * torch.arange(LENGTH)[:, None] * torch.tensor(WAVES) / LENGTH
    rows = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    turn = 2 * torch.pi * torch.tensor(WAVES) * offset / LENGTH
    blocks = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).view(-1, 2, 2)
    return _bert(rows, strength * torch.block_diag(*blocks), word), _waves(offset, strength)


def _encoder(scheme, word):
    """Our own encoder with 8 heads; only the first reads words, in its last columns, which a rotation hardly turns."""
    heads = 8
    config = EncoderConfig(
        vocab_size=3 + WORDS, width=heads * SIZE, heads=heads, feed_forward=8, encoder_layers=1, positions=scheme
    )
    torch.manual_seed(0)
    model = EncoderForMaskedLM(config).eval()
    attention = model.encoder.layers[0].self_attention
    with torch.no_grad():
        half = heads * SIZE // 2
        _plant_words(model.embedding.weight, half)
        for projection in (attention.q_proj, attention.k_proj):
            torch.nn.init.zeros_(projection.weight)
            torch.nn.init.zeros_(projection.bias)
            columns = range(SIZE // 2 - WORDS, SIZE // 2)
            factor = math.sqrt(word * math.sqrt(SIZE) / half)  # LayerNorm makes a word sqrt(half) long
            for number, column in enumerate(columns):
                projection.weight[column, number] = factor
    return model, attention


def _rope(offset, strength, word):
    """A constant query, and a constant key that is turned on by what `offset` tokens turn."""
    model, attention = _encoder("rope", word)
    rates = 10000.0 ** (-2 * torch.arange(SIZE // 2) / SIZE)
    size = math.sqrt(strength * math.sqrt(SIZE))
    first, second = (torch.arange(SIZE)[columns] for columns in pair_columns("half", SIZE // 2))
    with torch.no_grad():
        for pair in TURNING:
            attention.q_proj.bias[first[pair]] = size
            attention.k_proj.bias[first[pair]] = size * math.cos(-offset * rates[pair])
            attention.k_proj.bias[second[pair]] = size * math.sin(-offset * rates[pair])
    return model, strength * sum(np.cos(float(rates[pair]) * (OFFSETS - offset)) for pair in TURNING)


def _alibi(offset, strength, word):
    """Its slopes are given: the first of 8 heads has 1/2. Neither `offset` nor `strength` can be chosen."""
    model, _ = _encoder("alibi", word)
    return model, -0.5 * np.abs(OFFSETS)


def _none(offset, strength, word):
    model, _ = _encoder("none", word)
    return model, 0.0 * OFFSETS


def _t5(offset, strength, word):
    config = T5Config(d_model=SIZE, d_kv=SIZE, num_heads=1, num_layers=1, d_ff=8, vocab_size=3 + WORDS)
    torch.manual_seed(0)
    model = T5EncoderModel(config).eval()
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        model.shared.weight.zero_()[3:] = torch.eye(WORDS, SIZE)
        for projection in (attention.q, attention.k):
            projection.weight.copy_(torch.eye(SIZE) * math.sqrt(word / SIZE))  # its norm makes a word sqrt(SIZE) long
        bucket = t5_buckets(torch.from_numpy(OFFSETS)).numpy()
        by_offset = strength * np.random.default_rng(0).normal(size=32)
        by_offset[t5_buckets(torch.tensor([offset]))] = 4 * strength
        attention.relative_attention_bias.weight[:, 0] = torch.from_numpy(by_offset)
    return model, by_offset[bucket]


def _deberta(offset, strength, word):
    """Every query has a constant part, which meets the vector of its distance: content-to-position."""
    reach = LENGTH
    config = DebertaV2Config(
        hidden_size=2 * SIZE,
        num_attention_heads=1,
        num_hidden_layers=1,
        intermediate_size=8,
        vocab_size=3 + WORDS,
        max_position_embeddings=reach,
        max_relative_positions=reach,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["c2p"],
        share_att_key=False,
        type_vocab_size=0,
    )
    torch.manual_seed(0)
    model = DebertaV2Model(config).eval()
    attention = model.encoder.layer[0].attention.self
    scale = math.sqrt(2 * 2 * SIZE)
    by_offset = strength * np.random.default_rng(0).normal(size=2 * reach)  # by reach + query - key
    by_offset[reach - offset] = 4 * strength
    with torch.no_grad():
        _plant_words(model.embeddings.word_embeddings.weight, SIZE)
        for projection in (attention.query_proj, attention.key_proj, attention.pos_key_proj):
            torch.nn.init.zeros_(projection.weight)
            torch.nn.init.zeros_(projection.bias)
        factor = math.sqrt(word * scale / SIZE)
        for projection in (attention.query_proj, attention.key_proj):
            projection.weight[:WORDS, :WORDS] = factor * torch.eye(WORDS)
        attention.query_proj.bias[SIZE] = 1.0
        attention.pos_key_proj.weight[SIZE, 0] = 1.0
        model.encoder.rel_embeddings.weight.zero_()[: 2 * reach, 0] = scale * torch.from_numpy(by_offset)
    return model, by_offset[reach - OFFSETS]
