"""Models of which it is known how much of each head is position and how much is words."""

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from tests.planted_models import FREQUENCIES, LENGTH

WORDS = 16
_WAVES = [f for group in FREQUENCIES for f in group]


def squared_gain(waves=16, words=True):
    """What LayerNorm multiplies products with: 1 / variance of a row with so many waves, and a word or none."""
    return (64 + 2 * WORDS) / (2 * waves + 2 * words)


def mixed_bert(shifts=(-1, 2, 0, -3), wave=3.0, word=0.0, rows=2 * LENGTH):
    """A one-layer BERT whose scores are ``wave * sum_c cos(2 pi f_c (t - shift) / LENGTH) + word * [same word]``.

    Positions are waves as in `wave_bert`, words are unit vectors in columns of their own; each also with its
    negative, so that a row has mean 0 and the same norm whatever it holds. Waves repeat after LENGTH rows.
    """
    heads, size = len(shifts), 8 + WORDS
    waves = _WAVES
    width = heads * size
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=heads,
        intermediate_size=8,
        max_position_embeddings=rows,
        type_vocab_size=1,
    )
    torch.manual_seed(0)
    model = BertForMaskedLM(config).eval()
    angle = 2 * torch.pi * torch.arange(rows)[:, None] * torch.tensor(waves) / LENGTH
    half = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    with torch.no_grad():
        embeddings = model.bert.embeddings
        embeddings.token_type_embeddings.weight.zero_()
        embeddings.position_embeddings.weight.zero_()[:, :64] = torch.cat([half, -half], 1)
        embeddings.word_embeddings.weight.zero_()[:, 64:] = torch.cat([torch.eye(WORDS), -torch.eye(WORDS)], 1)
        attention = model.bert.encoder.layer[0].attention.self
        for projection in (attention.query, attention.key):
            projection.weight.zero_()
            projection.bias.zero_()
        unit = size**0.5 / squared_gain()
        for head, shift in enumerate(shifts):
            first = head * size
            for number, frequency in enumerate(FREQUENCIES[head]):
                column, row = 2 * waves.index(frequency), first + 2 * number
                turn = torch.tensor(2 * torch.pi * frequency * shift / LENGTH)
                rotation = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
                strength = (wave * unit) ** 0.5
                attention.query.weight[row : row + 2, column : column + 2] = strength * rotation
                attention.key.weight[row : row + 2, column : column + 2] = strength * torch.eye(2)
            for projection in (attention.query, attention.key):
                projection.weight[first + 8 : first + size, 64 : 64 + WORDS] = (word * unit) ** 0.5 * torch.eye(WORDS)
    return model


def wave_scores(head, shift, wave, offsets):
    """What the positions alone give at each offset."""
    angles = 2 * np.pi * np.array(FREQUENCIES[head])[:, None] * (offsets - shift) / LENGTH
    return wave * np.cos(angles).sum(0)


def random_texts(count, seed=0, length=LENGTH):
    """Words drawn one by one, all equally likely."""
    return np.random.default_rng(seed).integers(0, WORDS, (count, length)).tolist()
