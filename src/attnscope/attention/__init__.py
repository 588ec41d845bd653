"""The attention operation in all its forms, and the quantities that can be read off it without its matrix."""

from attnscope.attention._at_offsets import weights_at_offsets
from attnscope.attention._bins import bin_ranges, far_starts, segments
from attnscope.attention._blocks import BLOCK, Blocks, block_size, block_weights
from attnscope.attention._by_head import compiled_tiles
from attnscope.attention._call import AttentionCall, Need, RowMeasures
from attnscope.attention._finite import magnitude
from attnscope.attention._fused import can_fuse, fused_attention, fused_passes, plan_passes
from attnscope.attention._masks import MASK_ENTRIES, Extent, extent_by_rows, extent_of
from attnscope.attention._measure import Engine, attend_in_full, choose_engine, measure, output_of
from attnscope.attention._of_weights import call_of_weights, with_mass
from attnscope.attention._offset_bias import OffsetBias
from attnscope.attention._received import column_sums, last_of
from attnscope.attention._reference import attend, causal_mask, masked_softmax, padding_mask, window_mask
from attnscope.attention._row_mask import RowMask
from attnscope.attention._row_weights import RowWeights, row_weights
from attnscope.attention._sampled import measure_by_level, measure_rows
from attnscope.attention._some import of_queries, weights_at
from attnscope.attention._tiles import plain_tiles
from attnscope.attention._triton import can_triton, triton_tiles
from attnscope.attention._weight_sums import WeightSums, exchanged, weight_sums
from attnscope.attention.efficient import (
    block_sparse_attention,
    block_sparse_mask,
    linear_attention,
    sliding_window_attention,
)
from attnscope.attention.heads import MultiHeadAttention, SelfAttention
from attnscope.attention.positions import (
    LearnedPositions,
    RelativeBias,
    alibi_bias,
    alibi_by_offset,
    alibi_slopes,
    offsets,
    sinusoidal_shift,
    sinusoidal_table,
    t5_buckets,
)
from attnscope.attention.rotary import Rotation, layout_permutation, pair_columns, rotation, rotation_rates
from attnscope.attention.scores import (
    AdditiveScore,
    BilinearScore,
    DotScore,
    Score,
    ScoreTerms,
    look,
    scaled_dot_score,
)

__all__ = [
    "BLOCK",
    "MASK_ENTRIES",
    "AdditiveScore",
    "AttentionCall",
    "BilinearScore",
    "Blocks",
    "DotScore",
    "Engine",
    "Extent",
    "LearnedPositions",
    "MultiHeadAttention",
    "Need",
    "OffsetBias",
    "RelativeBias",
    "Rotation",
    "RowMask",
    "RowMeasures",
    "RowWeights",
    "Score",
    "ScoreTerms",
    "SelfAttention",
    "WeightSums",
    "alibi_bias",
    "alibi_by_offset",
    "alibi_slopes",
    "attend",
    "attend_in_full",
    "bin_ranges",
    "block_size",
    "block_sparse_attention",
    "block_sparse_mask",
    "block_weights",
    "call_of_weights",
    "can_fuse",
    "can_triton",
    "causal_mask",
    "choose_engine",
    "column_sums",
    "compiled_tiles",
    "exchanged",
    "extent_by_rows",
    "extent_of",
    "far_starts",
    "fused_attention",
    "fused_passes",
    "last_of",
    "layout_permutation",
    "linear_attention",
    "look",
    "magnitude",
    "masked_softmax",
    "measure",
    "measure_by_level",
    "measure_rows",
    "of_queries",
    "offsets",
    "output_of",
    "padding_mask",
    "pair_columns",
    "plain_tiles",
    "plan_passes",
    "rotation",
    "rotation_rates",
    "row_weights",
    "scaled_dot_score",
    "segments",
    "sinusoidal_shift",
    "sinusoidal_table",
    "sliding_window_attention",
    "t5_buckets",
    "triton_tiles",
    "weight_sums",
    "weights_at",
    "weights_at_offsets",
    "window_mask",
    "with_mass",
]
