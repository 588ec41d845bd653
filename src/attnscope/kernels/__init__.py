"""The attention operation in all its forms, and the quantities that can be read off it without its matrix."""

from attnscope.kernels.at_offsets import weights_at_offsets
from attnscope.kernels.bins import bin_ranges, far_starts, segments
from attnscope.kernels.blocks import BLOCK, Blocks, block_size, block_weights
from attnscope.kernels.by_head import compiled_tiles
from attnscope.kernels.call import (
    AttentionCall,
    Need,
    RowMeasures,
    call_of_weights,
    magnitude,
    of_queries,
    weights_at,
    with_mass,
)
from attnscope.kernels.efficient import (
    block_sparse_attention,
    block_sparse_mask,
    linear_attention,
    sliding_window_attention,
)
from attnscope.kernels.engines import Engine, attend_in_full, choose_engine, measure, output_of
from attnscope.kernels.fused import can_fuse, fused_attention, fused_passes, plan_passes
from attnscope.kernels.heads import MultiHeadAttention, SelfAttention
from attnscope.kernels.masks import MASK_ENTRIES, Extent, OffsetBias, RowMask, extent_by_rows, extent_of
from attnscope.kernels.plain import plain_tiles
from attnscope.kernels.positions import (
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
from attnscope.kernels.reference import attend, causal_mask, masked_softmax, padding_mask, window_mask
from attnscope.kernels.rotary import Rotation, layout_permutation, pair_columns, rotation, rotation_rates
from attnscope.kernels.sampled import measure_by_level, measure_rows
from attnscope.kernels.scores import (
    AdditiveScore,
    BilinearScore,
    DotScore,
    Score,
    ScoreTerms,
    look,
    scaled_dot_score,
)
from attnscope.kernels.sums import (
    RowWeights,
    WeightSums,
    column_sums,
    exchanged,
    last_of,
    row_weights,
    weight_sums,
)
from attnscope.kernels.triton import can_triton, triton_tiles

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
