"""Any Hugging Face model: its attention calls, seen as they happen and checked against the model's own."""

from attnscope.capture._backward import should_look_back
from attnscope.capture._borrow import borrowed, borrowing
from attnscope.capture._decoder import decoder_note, decoder_start
from attnscope.capture._forward import forward, not_finite
from attnscope.capture._load import DTYPES, LoadedModel, load_model, usable_device
from attnscope.capture._padding import padding_difference
from attnscope.capture._positions import position_table_length, stored_positions
from attnscope.capture._quiet import quiet
from attnscope.capture._registry import Site, attnscope_attention, watching
from attnscope.capture._verify import verify

__all__ = [
    "DTYPES",
    "LoadedModel",
    "Site",
    "attnscope_attention",
    "borrowed",
    "borrowing",
    "decoder_note",
    "decoder_start",
    "forward",
    "load_model",
    "not_finite",
    "padding_difference",
    "position_table_length",
    "quiet",
    "should_look_back",
    "stored_positions",
    "usable_device",
    "verify",
    "watching",
]
