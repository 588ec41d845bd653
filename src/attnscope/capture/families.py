"""What is guessed about other people's models, from names of their modules, arguments and settings.

Nothing outside this file guesses by a name: there a model is asked by transformers' own protocol, or told by its
numbers. Each guess says what it is for and what becomes of a model of which it is wrong.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedModel

# --- what a module is, by the name of its class ---

# Layers that are called attention and have no weights from token to token: a state that runs along the text in hybrids,
# or weights of the states that a token had in earlier layers (Inkling). Another such class would be missed by `verify`,
# and its model refused as not captured in full.
_RUNNING = (
    "BailingHybridDeltaAttention",
    "Glm5NextTextLinearAttention",
    "Inkling2BlockAttentionResidual",
    "KimiLinearDeltaAttention",
    "MiniMaxLightningAttention",
    "OlmoHybridLinearAttentionDecoderLayer",
)


def is_attention(module: nn.Module) -> bool:
    """Whether a module attends: its hidden states are read here, and none with matrices may run uncaptured."""
    named = "Attention" in _class(module) and not _class(module).endswith(("Output", "MLP"))  # what stands behind it
    return named and _class(module) not in _RUNNING and not takes_points(module)


def is_called_attention(module: nn.Module) -> bool:
    """Whether a module with matrices is called so, whoever wrote it: `watch` names those that made no call."""
    name = _class(module).lower()
    return (
        ("attention" in name or "attn" in name)
        and not name.endswith(("output", "mlp"))
        and any(parameter.ndim >= 2 for parameter in module.parameters())  # noqa: PLR2004
    )


def related(name: str, other: str) -> bool:
    """Whether one of two modules, by their names, is the other or within it."""
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises, so that a query may come out of it."""
    return "Norm" in _class(module)


def is_rotary(module: nn.Module) -> bool:
    """Whether a module gives cosines and sines that turn queries and keys."""
    return "Rotary" in _class(module)


def takes_points(module: nn.Module) -> bool:
    """Whether each query of a module takes a few points between the places of a picture (deformable attention)."""
    return "DeformableAttention" in _class(module)


def is_pooling_head(module: nn.Module) -> bool:
    """Whether a module pools what a vision encoder gives, by attention from a learned probe (SigLIP, AIMv2)."""
    return "PoolingHead" in _class(module)


def disentangled_version(module: nn.Module) -> int | None:
    """Which of DeBERTa's attentions a module is, 1 or 2 (and 3), that can be captured; None for any other."""
    if _class(module) != "DisentangledSelfAttention" or getattr(module, "head_logits_proj", None) is not None:
        return None
    return 1 if hasattr(module, "in_proj") else 2


# Where weights are not returned as (batch, head, query, key). Under another name such a module is refused, as what it
# returns does not look like weights.
_LAYOUTS = {
    "XLNetRelativeAttention": "heads last",
    "LongformerSelfAttention": "band",
    "LEDEncoderSelfAttention": "band",
    "LongT5LocalAttention": "blocks",
    "PPFormulaNetVisionAttention": "heads in batch",
    "SamHQVisionAttention": "heads in batch",
    "SamVisionAttention": "heads in batch",
    "SLANeXtVisionAttention": "heads in batch",
}
# What has no weights of its own from token to token, and why. Under another name it is refused by its numbers.
_BY_CHANCE = (
    "it attends in blocks drawn at random where a text is long, and in full where it is short: set attention_type in "
    'its config to "original_full"'
)
_NO_WEIGHTS = {
    "AutoformerAttention": "it weighs delays of a whole series by its autocorrelation, in place of tokens",
    "BigBirdBlockSparseAttention": _BY_CHANCE,
    "BigBirdPegasusBlockSparseAttention": _BY_CHANCE,
    "LongT5TransientGlobalAttention": "it attends to sums of blocks beside its tokens",
    "LSHSelfAttention": "it hashes tokens into buckets and attends within these",
    "MraSelfAttention": "it attends in blocks of several sizes, and keeps no weights of tokens",
    "NystromformerSelfAttention": "it goes through landmarks in place of weights from token to token",
    "ProphetNetNgramSelfAttention": "its decoder reads a text in several streams at once",
    "RwkvSelfAttention": "it is a recurrence, without weights",
    "YosoSelfAttention": "it hashes queries and keys in place of a softmax, and its weights do not sum to 1",
}


def weights_layout(module: nn.Module) -> str | None:
    """How a module lays out the weights that it returns, where it is not as (batch, head, query, key)."""
    return _LAYOUTS.get(_class(module))


def why_no_weights(module: nn.Module) -> str | None:
    """Why a module has no weights that could be measured; None where nothing is known against it."""
    return _NO_WEIGHTS.get(_class(module))


def _class(module: nn.Module) -> str:
    return type(module).__name__


def reported_heads(module: nn.Module) -> list[int]:
    """Numbers of heads that a module or its config says; none where both call them otherwise."""
    return [
        value
        for holder in (module, getattr(module, "config", None))
        if holder is not None
        for name, value in vars(holder).items()
        if "head" in name and "dim" not in name and "size" not in name and type(value) is int
    ]


# --- what an attention module is called with, and a model returns ---

# What queries are made of, where it is not the first argument. Under another name it is not known what a layer reads,
# and the analyses that need it refuse the layer by name.
OWN_STATES = "hidden_states"
# What keys and values are made of, where that is another text. Under another name cross-attention counts as
# self-attention, and keys are taken to come from the queries' own states.
_OTHER_STATES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
# The tensor of an output that everything before it leads to. Under another name the first field is compared.
_MAIN_OUTPUTS = ("logits", "last_hidden_state")


def other_states(arguments: Mapping[str, Any]) -> Any:
    """What keys and values are made of, among the named arguments of an attention module; None in self-attention."""
    return next((arguments[name] for name in _OTHER_STATES if arguments.get(name) is not None), None)


def main_output(output: Any) -> Tensor:
    """The tensor of a model's output that everything before it leads to."""
    if isinstance(output, Tensor):
        return output
    for field in _MAIN_OUTPUTS:
        if getattr(output, field, None) is not None:
            return main_output(getattr(output, field))
    for tensor in _tensors(output):
        return tensor
    raise AttnscopeError(
        f"found an output of type {type(output).__name__} without a tensor; expected one by which two ways of "
        "attending can be compared: let the model return one"
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    """Of each level real numbers first, as a codec gives codes first; then what lies deeper."""
    held = output.to_tuple() if hasattr(output, "to_tuple") else output
    parts = list(held.values() if isinstance(held, dict) else held)
    yield from (part for part in parts if isinstance(part, Tensor) and part.is_floating_point())
    for part in parts:
        if isinstance(part, dict | tuple | list):
            yield from _tensors(part)
    yield from (part for part in parts if isinstance(part, Tensor))


# --- where positions are kept ---

# How families call their tables. Under another name a model seems to have no table: `explain` leaves out what needs
# one and says so, and a window may be longer than the table, where the model itself fails.
_TABLES = (
    "position_embeddings",
    "wpe",
    "embed_positions",
    "position_embedding",
    "pos_embed",
    "pos_embedding",
    "positions_embed",  # GPT-1
    "char_position_embeddings",  # CANINE
)
_BUFFERS = ("pos_encoding",)  # CTRL; as above
# Tables under such a name that turn queries and keys instead of being added to the inputs. Another such class would be
# taken for an added table.
_TURNING = ("RoFormerSinusoidalPositionalEmbedding",)
# How the projection from a narrower table to the model's width is called. Under another name the table is analysed in
# its own width alone, and the first layer is not split into position and content.
_PROJECTIONS = ("embedding_hidden_mapping_in", "embeddings_project")
# A class token beside the table. Under another name its row counts as that of a place in the picture.
_CLASS_TOKENS = ("cls_token", "class_embedding")


def is_position_table(name: str, *, buffer: bool = False) -> bool:
    """Whether a module or parameter of that name (or a buffer) is a table of absolute positions."""
    return name.rpartition(".")[2] in (_BUFFERS if buffer else _TABLES)


def rotates_queries(module: nn.Module) -> bool:
    """Whether a position table is not added to the inputs but turns queries and keys."""
    return _class(module) in _TURNING


def stored_rows(table: nn.Module) -> Any:
    """The tensor within a position table; None where it is called otherwise, and then there seems to be no table."""
    return getattr(table, "weight", getattr(table, "weights", None))


def reserved_rows(table: nn.Module, beside: nn.Module, rows: int) -> int:
    """How many rows at the start of a position table belong to no position."""
    padding = getattr(table, "padding_idx", None)
    ids = getattr(beside, "position_ids", None)
    first = int(ids.flatten()[0]) if isinstance(ids, Tensor) and ids.numel() and not ids.is_meta else 0
    return max(
        int(getattr(table, "offset", 0)), 0 if padding is None else padding + 1, first if 0 <= first < rows else 0
    )


def is_embedding_projection(name: str) -> bool:
    """Whether the linear layer of that name takes embeddings to the model's width."""
    return name.endswith(_PROJECTIONS)


def patch_size_of(config: Any) -> tuple[int, int] | None:
    """Rows and columns of pixels in one patch; None where the config does not say."""
    size: Any = getattr(config, "patch_size", None)
    if isinstance(size, int):
        return size, size
    pair = tuple(size) if isinstance(size, list | tuple) else ()
    return (pair[0], pair[1]) if len(pair) == 2 and all(isinstance(side, int) for side in pair) else None  # noqa: PLR2004


def frames_of(config: Any) -> int | None:
    """Frames that an encoder of whole videos reads at a time, as its config says; None for what reads no videos."""
    counts = (getattr(config, name, None) for name in ("num_frames", "frames_per_clip"))
    count = next((count for count in counts if isinstance(count, int) and count > 0), None)
    return count if tubelet_of(config) is not None else None


def tubelet_of(config: Any) -> tuple[int, int, int] | None:
    """Frames, rows and columns of pixels in one token of a video; None where the config does not say."""
    size: Any = getattr(config, "tubelet_size", 1)
    patch = patch_size_of(config)
    if isinstance(size, list | tuple):
        return (
            (size[0], size[1], size[2])
            if len(size) == 3 and all(isinstance(side, int) for side in size)  # noqa: PLR2004
            else None
        )
    return (size, *patch) if isinstance(size, int) and patch is not None else None


def image_token_of(config: Any) -> int | None:
    """The token that stands for a piece of an image in a text; None where the config names none."""
    numbers = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((number for number in numbers if isinstance(number, int)), None)


def video_token_of(config: Any) -> int | None:
    """The token that stands for a piece of a video; None where the config names none, or frames are images to it."""
    numbers = (getattr(config, name, None) for name in ("video_token_id", "video_token_index"))
    return next((number for number in numbers if isinstance(number, int)), None)


def merged_side(image_processor: Any) -> int:
    """How many patches on a side a decoder reads as one piece of an image, where the processor tells grids of
    patches.
    """
    sizes = (getattr(image_processor, name, None) for name in ("merge_size", "spatial_merge_size"))
    return next((size for size in sizes if isinstance(size, int)), 1)


def is_video_processor(processor: Any) -> bool:
    """Whether a processor prepares whole videos, and would choose frames itself; else it takes them as images."""
    return "VideoProcessor" in type(processor).__name__


# Says to an encoder of videos that what guesses hidden frames, behind the encoder, need not run (V-JEPA 2). Under
# another name it runs too, and its layers are measured as the encoder's.
_WITHOUT_PREDICTOR = "skip_predictor"


def without_predictor(model: nn.Module) -> dict[str, bool]:
    """Arguments that leave out the half of a video model that guesses what was hidden; none where it has no such
    half.
    """
    known = inspect.signature(model.forward).parameters
    return {_WITHOUT_PREDICTOR: True} if _WITHOUT_PREDICTOR in known else {}


def seconds_at_once(extractor: Any) -> int:
    """Seconds of a sound that a model reads at once: Whisper's window, else 30."""
    return int(getattr(extractor, "chunk_length", 30))


def frames_of_window(model: Any, extractor: Any) -> tuple[int, float] | None:
    """Frames that an encoder of sounds makes of its window (Whisper), and samples of each; None where it has none."""
    window: Any = getattr(extractor, "n_samples", None)
    frames: Any = getattr(model.config, "max_source_positions", None)
    return None if window is None or frames is None else (int(frames), window / int(frames))


def frames_of_wave(model: Any, samples: int) -> tuple[int, float] | None:
    """Frames that an encoder makes of the wave itself (Wav2Vec2), and samples from one to the next; None of others."""
    count: Any = getattr(model, "_get_feat_extract_output_lengths", None)
    ratio: Any = getattr(model.config, "inputs_to_logits_ratio", None)
    return None if count is None or ratio is None else (int(count(samples)), float(ratio))


def transcript_length(config: Any) -> int | None:
    """Tokens of a transcript that a decoder of sounds reads; None where the config does not say."""
    return getattr(config, "max_target_positions", None)


def has_class_token(embeddings: nn.Module) -> bool:
    """Whether the first row of the position table beside it is of a class token."""
    return any(getattr(embeddings, name, None) is not None for name in _CLASS_TOKENS)


# What a model without a table has instead: part of a module's class or attribute name, and what that does. It stands in
# the reason why an analysis is left out, and decides nothing; under another name the scheme is said to be not known.
_SCHEMES = (
    ("alibi", "it lowers scores with distance (ALiBi)"),
    ("bloomattention", "it lowers scores with distance (ALiBi)"),
    ("mptattention", "it lowers scores with distance (ALiBi)"),
    ("roformersinusoidal", "it turns queries and keys by their positions (RoPE)"),
    ("rotary", "it turns queries and keys by their positions (RoPE)"),
    ("relative_attention_bias", "it adds a bias for each distance to the scores (T5)"),
    ("relative_position_bias", "it adds a bias for each distance to the scores"),
    ("rel_embeddings", "it compares queries and keys with vectors of distances (DeBERTa)"),
)
# The same by what the setting `positions` of attnscope's own models says
_NAMED = {
    "alibi": dict(_SCHEMES)["alibi"],
    "rope": dict(_SCHEMES)["rotary"],
    "t5": dict(_SCHEMES)["relative_attention_bias"],
    "none": "it is told no positions",
}


def named_scheme(model: PreTrainedModel) -> str | None:
    """Say how a model without a table tells positions, by its names; None where they do not say it."""
    named = _NAMED.get(str(getattr(model.config, "positions", "")))
    if named is not None:
        return named
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return "it reads one token after the other (a recurrent network)"
    names = {f"{name}.{_class(module)}".lower() for name, module in model.named_modules()}
    names |= {name.lower() for name, _ in model.named_parameters()}
    for mark, words in _SCHEMES:
        if any(mark in name for name in names) or getattr(model.config, mark, False):
            return words
    return None


# --- settings and weights ---


def configured_length(config: Any) -> int | None:
    """Tokens that a model takes, as its config says; None where it does not."""
    return getattr(config, "max_position_embeddings", None)


def counts_something_listed(setting: str) -> bool:
    """Whether a setting counts layers or labels, of each of which transformers makes a list before the model."""
    return "layer" in setting or "label" in setting


def counts_layers(setting: str) -> bool:
    """Whether a setting is a number of layers, which is not below 0."""
    return setting.endswith("layers") or setting == "n_layer"


def is_pooler(tensor: str) -> bool:
    """Whether a tensor is of a pooler, which a checkpoint may lack: no attention layer reads what it gives."""
    return "pooler" in tensor
