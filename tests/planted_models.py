"""Models whose answers are known."""

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

LENGTH = 32
FREQUENCIES = ((1, 4, 9, 14), (2, 5, 11, 15), (3, 6, 10, 13), (7, 8, 12, 14))  # cycles per LENGTH, a head each


def circulant_profile(frequencies, weight, shift, length=LENGTH):
    """a(t), t = 0..length-1: softmax of sum_c weight cos(2 pi f_c (t - shift) / length) (mechanism C9)."""
    t = np.arange(length)
    scores = weight * sum(np.cos(2 * np.pi * f * (t - shift) / length) for f in frequencies)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def wave_bert(shifts, weights=(3.0, 3.0, 3.0, 3.0)):
    """A one-layer BERT whose words are zero and whose positions are waves: head h looks at offset shifts[h].

    Positions hold, for all 16 frequencies, cosine and sine and their negatives, so that every row has mean 0
    and the same norm and LayerNorm only multiplies it by a known number. Waves of whole frequencies make the
    weights circulant: the weight at offset t is `circulant_profile`, in every row.
    """
    waves = [f for group in FREQUENCIES for f in group]
    width = 4 * len(waves)  # 64
    heads = len(shifts)
    config = BertConfig(
        vocab_size=640,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=heads,
        intermediate_size=8,
        max_position_embeddings=LENGTH,
        type_vocab_size=1,
    )
    model = BertForMaskedLM(config).eval()
    angle = 2 * torch.pi * torch.arange(LENGTH)[:, None] * torch.tensor(waves) / LENGTH
    half = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)  # position, 2 * waves
    with torch.no_grad():
        embeddings = model.bert.embeddings
        embeddings.word_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        embeddings.position_embeddings.weight.copy_(torch.cat([half, -half], 1))
        # after LayerNorm a row has variance 1: cosine and sine are multiplied by sqrt(2)
        scaling = config.hidden_size / heads
        attention = model.bert.encoder.layer[0].attention.self
        for projection in (attention.query, attention.key, attention.value):
            projection.weight.zero_()
            projection.bias.zero_()
        size = width // heads
        for head, (shift, weight) in enumerate(zip(shifts, weights, strict=True)):
            strength = (weight * scaling**0.5 / 2) ** 0.5
            for number, frequency in enumerate(FREQUENCIES[head]):
                column = 2 * waves.index(frequency)
                row = head * size + 2 * number
                turn = torch.tensor(2 * torch.pi * frequency * shift / LENGTH)
                rotation = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
                attention.query.weight[row : row + 2, column : column + 2] = strength * rotation
                attention.key.weight[row : row + 2, column : column + 2] = strength * torch.eye(2)
    return model


def causal(model):
    """The same BERT with a causal mask."""
    model.config.is_decoder = True
    for layer in model.bert.encoder.layer:
        layer.attention.self.is_decoder = layer.attention.self.is_causal = True
    return model


def overflowing_bert(token, vocabulary=640):
    """A random BERT of two layers, without a head, which overflows on every text that holds this token."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    model = BertModel(config).eval()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[token] = 3e38
    return model
