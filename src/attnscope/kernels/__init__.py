"""The attention operation in all its forms, and the quantities that can be read off it without its matrix."""

from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.blocks import Blocks, block_size, block_weights
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, call_of_weights
from attnscope.kernels.efficient import (
    block_sparse_attention,
    block_sparse_mask,
    linear_attention,
    sliding_window_attention,
)
from attnscope.kernels.engines import Engine, choose_engine, measure, output_of
from attnscope.kernels.heads import MultiHeadAttention, SelfAttention
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.positions import (
    LearnedPositions,
    RelativeBias,
    Rotation,
    alibi_bias,
    alibi_by_offset,
    alibi_slopes,
    offsets,
    rotation,
    rotation_rates,
    sinusoidal_shift,
    sinusoidal_table,
    t5_buckets,
)
from attnscope.kernels.reference import attend, causal_mask, masked_softmax, padding_mask, window_mask
from attnscope.kernels.scores import AdditiveScore, BilinearScore, DotScore, Score, ScoreTerms, look
from attnscope.kernels.sums import column_sums, weight_sums
from attnscope.kernels.triton import can_triton

__all__ = [
    "AdditiveScore",
    "AttentionCall",
    "BilinearScore",
    "Blocks",
    "DotScore",
    "Engine",
    "LearnedPositions",
    "MultiHeadAttention",
    "Need",
    "OffsetBias",
    "RelativeBias",
    "Rotation",
    "RowMeasures",
    "Score",
    "ScoreTerms",
    "SelfAttention",
    "alibi_bias",
    "alibi_by_offset",
    "alibi_slopes",
    "attend",
    "block_size",
    "block_sparse_attention",
    "block_sparse_mask",
    "block_weights",
    "call_of_weights",
    "can_triton",
    "causal_mask",
    "choose_engine",
    "column_sums",
    "linear_attention",
    "look",
    "masked_softmax",
    "measure",
    "offsets",
    "output_of",
    "padding_mask",
    "rotation",
    "rotation_rates",
    "sinusoidal_shift",
    "sinusoidal_table",
    "sliding_window_attention",
    "t5_buckets",
    "weight_sums",
    "weights_at_offsets",
    "window_mask",
]
