"""The attention operation in all its forms, and the quantities that can be read off it without its matrix."""

from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.blocks import Blocks, block_weights
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.engines import measure
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
    sinusoidal_table,
    t5_buckets,
)
from attnscope.kernels.reference import attend, causal_mask, masked_softmax, padding_mask, window_mask
from attnscope.kernels.sums import column_sums

__all__ = [
    "AttentionCall",
    "Blocks",
    "LearnedPositions",
    "MultiHeadAttention",
    "Need",
    "OffsetBias",
    "RelativeBias",
    "Rotation",
    "RowMeasures",
    "SelfAttention",
    "alibi_bias",
    "alibi_by_offset",
    "alibi_slopes",
    "attend",
    "block_weights",
    "causal_mask",
    "column_sums",
    "masked_softmax",
    "measure",
    "offsets",
    "padding_mask",
    "rotation",
    "rotation_rates",
    "sinusoidal_table",
    "t5_buckets",
    "weights_at_offsets",
    "window_mask",
]
