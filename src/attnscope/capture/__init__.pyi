from ._backward import should_look_back
from ._borrow import borrowed, borrowing
from ._decoder import decoder_note, decoder_start
from ._forward import forward, not_finite
from ._load import DTYPES, LoadedModel, load_model, usable_device
from ._padding import padding_difference
from ._positions import position_table_length, stored_positions
from ._quiet import quiet
from ._registry import Site, attnscope_attention, watching
from ._sites import layer_coordinates
from ._verify import TOLERANCE, verify

__all__ = [
    "DTYPES",
    "TOLERANCE",
    "LoadedModel",
    "Site",
    "attnscope_attention",
    "borrowed",
    "borrowing",
    "decoder_note",
    "decoder_start",
    "forward",
    "layer_coordinates",
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
