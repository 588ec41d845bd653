"""The attention operation, and the quantities that can be read off it without its matrix."""

from attnscope.attention._call import AttentionCall, Need, RowMeasures, extent_of
from attnscope.attention._fused import can_fuse, fused_attention, fused_passes, plan_passes
from attnscope.attention._measure import Engine, choose_engine, measure
from attnscope.attention._reference import attend, causal_mask, padding_mask, window_mask
from attnscope.attention._tiles import compiled_tiles, plain_tiles

__all__ = [
    "AttentionCall",
    "Engine",
    "Need",
    "RowMeasures",
    "attend",
    "can_fuse",
    "causal_mask",
    "choose_engine",
    "compiled_tiles",
    "extent_of",
    "fused_attention",
    "fused_passes",
    "measure",
    "padding_mask",
    "plain_tiles",
    "plan_passes",
    "window_mask",
]
