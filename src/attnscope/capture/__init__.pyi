from ._backward import should_look_back
from ._borrow import borrowed, borrowing
from ._decoder import decoder_note, decoder_start
from ._eager import without_cache
from ._forward import check_finite, check_ids, forward, not_finite
from ._functional import SeenCall, sees_ahead
from ._hearing import SpeechModel, load_speech_model, reads_sounds
from ._heuristics import (
    OWN_STATES,
    configured_length,
    has_class_token,
    is_attention,
    is_embedding_projection,
    is_norm,
    is_rotary,
    main_output,
    merged_side,
    named_scheme,
    other_states,
    patch_size_of,
    transcript_length,
    tubelet_of,
)
from ._inner import Bridge, Envoy, inner_model
from ._load import load_model
from ._loaded import LoadedModel
from ._loading import AS_SAVED, DTYPES, Loading, usable_device
from ._model import Model
from ._module_calls import ModuleCalls, PassObserver, calls_inside
from ._notes import capture_notes
from ._padding import padding_difference
from ._pictured import PicturedModel, load_pictured_model, puts_images_into_texts
from ._placement import Placement, device_of
from ._positions import position_table_length, stored_positions
from ._quantised import plain
from ._quiet import quiet
from ._registry import attnscope_attention
from ._senses import Sense, refuse_senses, sense_of
from ._signature import signature_of
from ._sites import layer_coordinates
from ._team import Team
from ._tokenizer import Processor, Tokenizer
from ._verify import TOLERANCE, pooling_heads, verify
from ._video import VideoModel, load_video_model, reads_videos
from ._vision import VisionModel, load_vision_model, reads_images
from ._watch import Observer, Site
from ._watching import Capture, capture_of, watching

__all__ = [
    "AS_SAVED",
    "DTYPES",
    "OWN_STATES",
    "TOLERANCE",
    "Bridge",
    "Capture",
    "Envoy",
    "LoadedModel",
    "Loading",
    "Model",
    "ModuleCalls",
    "Observer",
    "PassObserver",
    "PicturedModel",
    "Placement",
    "Processor",
    "SeenCall",
    "Sense",
    "Site",
    "SpeechModel",
    "Team",
    "Tokenizer",
    "VideoModel",
    "VisionModel",
    "attnscope_attention",
    "borrowed",
    "borrowing",
    "calls_inside",
    "capture_notes",
    "capture_of",
    "check_finite",
    "check_ids",
    "configured_length",
    "decoder_note",
    "decoder_start",
    "device_of",
    "forward",
    "has_class_token",
    "inner_model",
    "is_attention",
    "is_embedding_projection",
    "is_norm",
    "is_rotary",
    "layer_coordinates",
    "load_model",
    "load_pictured_model",
    "load_speech_model",
    "load_video_model",
    "load_vision_model",
    "main_output",
    "merged_side",
    "named_scheme",
    "not_finite",
    "other_states",
    "padding_difference",
    "patch_size_of",
    "plain",
    "pooling_heads",
    "position_table_length",
    "puts_images_into_texts",
    "quiet",
    "reads_images",
    "reads_sounds",
    "reads_videos",
    "refuse_senses",
    "sees_ahead",
    "sense_of",
    "should_look_back",
    "signature_of",
    "stored_positions",
    "transcript_length",
    "tubelet_of",
    "usable_device",
    "verify",
    "watching",
    "without_cache",
]
