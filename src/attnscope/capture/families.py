"""All guesses about models from names; each documents its use and its effect on a model for which it is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transformers import PreTrainedModel

# --- kinds of modules, by the names of their classes ---

# Layers that are called attention but have no token-to-token weights: recurrent states in hybrids, or weights over a
# token's states in earlier layers (Inkling). A missing class here makes `verify` reject its model as incomplete.
_RUNNING = (
    *("BailingHybridDeltaAttention", "Glm5NextTextLinearAttention", "Inkling2BlockAttentionResidual"),
    *("KimiLinearDeltaAttention", "MiniMaxLightningAttention"),
)


def is_attention(module: nn.Module) -> bool:
    """Whether a module attends: `verify` checks that every such module with matrices is captured."""
    return _is_attention(type(module).__name__)


def attention_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that attend, however many others a model has."""
    return [module for module in modules if _is_attention(type(module).__name__)]


@cache
def _is_attention(name: str) -> bool:
    named = "Attention" in name and not name.endswith(("Output", "MLP", "DecoderLayer"))  # beside or around attention
    return named and name not in _RUNNING and _POINTS not in name


def is_called_attention(module: nn.Module) -> bool:
    """Whether a module with matrices is called attention: `watch` lists those without a captured call."""
    name = _class(module).lower()
    named = ("attention" in name or "attn" in name) and not name.endswith(("output", "mlp"))
    return named and any(parameter.ndim >= 2 for parameter in module.parameters())  # noqa: PLR2004


def related(name: str, other: str) -> bool:
    """Whether one of two named modules is the other, or is inside it."""
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")


def unrelated(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Names of modules that are related to none of the others: layers, rather than the modules around them."""
    others = list(others)
    alone = [name for name in names if not any(related(name, other) for other in others)]
    return [name for name in alone if not any(other.startswith(f"{name}.") for other in alone)]


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation, whose output may be a query."""
    return "Norm" in _class(module) and next(module.children(), None) is None  # else a layer named after its norms


def is_activation(module: nn.Module) -> bool:
    """Whether a module applies a function to each number, as between the layers of an MLP."""
    room = type(module).__module__
    return room in {"torch.nn.modules.activation", "transformers.activations"} and not any(module.parameters())


# Layers that add an embedding of its own to each block (Gemma 4). Under another name, they count as part of the MLP.
_ADDED_EMBEDDINGS = ("per_layer_projection",)


def adds_embeddings(name: str) -> bool:
    """Whether the module of that name adds an embedding to a block."""
    return name.endswith(_ADDED_EMBEDDINGS)


def is_rotary(module: nn.Module) -> bool:
    """Whether a module computes cosines and sines that rotate queries and keys."""
    return "Rotary" in _class(module)


_POINTS = "DeformableAttention"


def takes_points(module: nn.Module) -> bool:
    """Whether a module samples a few points of an image for each query (deformable attention)."""
    return _POINTS in _class(module)


# A missing class here leaves a layer out of the note on what is not measured, and changes no number.
_MIXERS = ("Mixer", "GatedDeltaNet", "MambaLayer", "RecurrentBlock", "ShortConv", "ShortConvolution")


def mixes_without_attention(module: nn.Module) -> bool:
    """Whether a module mixes tokens without weights from token to token: Mamba, delta rule, short convolutions."""
    name = type(module).__name__
    return name.endswith(_MIXERS) or name in _RUNNING


def is_pooling_head(module: nn.Module) -> bool:
    """Whether a module pools the output of a vision encoder by attention from a learned probe (SigLIP, AIMv2)."""
    return "PoolingHead" in _class(module)


def disentangled_modules(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, int]]:
    """Modules of DeBERTa's attention that can be captured, each with its version, 1 or 2 (and 3)."""
    named = [module for module in modules if type(module).__name__ == "DisentangledSelfAttention"]
    plain = [module for module in named if getattr(module, "head_logits_proj", None) is None]
    return [(module, 1 if hasattr(module, "in_proj") else 2) for module in plain]


# Modules that do not return weights as (batch, head, query, key). A missing class here is rejected, because its output
# does not look like weights.
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
# Modules without token-to-token weights, and why. A missing class here is rejected by numerical checks.
_BY_CHANCE = (
    "it attends to random blocks of a long text, and fully to a short one. Set attention_type in its config to "
    '"original_full"'
)
_NO_WEIGHTS = {
    "AutoformerAttention": "it weights delays of a whole series by autocorrelation, instead of tokens",
    "BigBirdBlockSparseAttention": _BY_CHANCE,
    "BigBirdPegasusBlockSparseAttention": _BY_CHANCE,
    "LongT5TransientGlobalAttention": "it also attends to sums of blocks",
    "LSHSelfAttention": "it hashes tokens into buckets and attends within them",
    "MraSelfAttention": "it attends in blocks of several sizes, without weights of tokens",
    "NystromformerSelfAttention": "it uses landmarks instead of token-to-token weights",
    "ProphetNetNgramSelfAttention": "its decoder reads a text in several streams at once",
    "RwkvSelfAttention": "it is a recurrence without weights",
    "YosoSelfAttention": "it hashes queries and keys instead of a softmax, and its weights do not sum to 1",
}


def weights_layout(module: nn.Module) -> str | None:
    """Layout of a module's weights, if it is not (batch, head, query, key)."""
    return _LAYOUTS.get(_class(module))


def why_no_weights(module: nn.Module) -> str | None:
    """Why a module has no measurable weights; None if no reason is known."""
    return _NO_WEIGHTS.get(_class(module))


def _class(module: nn.Module) -> str:
    return type(module).__name__


def reported_heads(module: nn.Module) -> list[int]:
    """Numbers of heads in the attributes of a module or its config, if any."""
    holders = (vars(holder) for holder in (module, getattr(module, "config", None)) if holder is not None)
    numbers = [
        (name, value)
        for attributes in holders
        for name, value in attributes.items()
        if "head" in name and type(value) is int
    ]
    return [value for name, value in numbers if "dim" not in name and "size" not in name]


# --- arguments of attention modules, and outputs of models ---

# The input of queries, if it is not the first argument. Under another name, analyses that need it reject the layer.
OWN_STATES = "hidden_states"
# The input of keys and values in cross-attention. Under another name, cross-attention counts as self-attention.
_OTHER_STATES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
# The final tensor of an output. Under another name, the first field is compared.
_MAIN_OUTPUTS = ("logits", "last_hidden_state")


def other_name(arguments: Mapping[str, Any]) -> str:
    """The name of the input of keys and values among the arguments of cross-attention; empty in self-attention."""
    return next((name for name in _OTHER_STATES if arguments.get(name) is not None), "")


def other_states(arguments: Mapping[str, Any]) -> Any:
    """The input of keys and values among the named arguments of a cross-attention module; None in self-attention."""
    return arguments.get(other_name(arguments))


def main_output(output: Any) -> Tensor:
    """The final tensor of a model's output."""
    if isinstance(output, Tensor):
        return output
    for field in _MAIN_OUTPUTS:
        if getattr(output, field, None) is not None:
            return main_output(getattr(output, field))
    for tensor in _tensors(output):
        return tensor
    raise AttnscopeError(
        f"found an output of type {type(output).__name__} without a tensor; expected at least one, to verify the "
        "captured attention"
    )


def body_of(model: PreTrainedModel) -> nn.Module:
    """The part of a model below its head; the model itself without one, or under another name: its head runs too."""
    body: Any = model.base_model
    if getattr(model.config, "is_encoder_decoder", False):
        return model.get_decoder() if body is model else body  # T5 has its stacks and its head side by side
    return getattr(body, "decoder", body)  # OPT calls that, not the body around it


def without_cache(start: nn.Module) -> dict[str, bool]:
    """Arguments that disable the cache: with one, FSMT's decoder attends to the future.

    A head that passes on what it does not know has none of its own (Granite 4), unless it sets the argument (JEV).
    """
    parameters = inspect.signature(start.forward).parameters
    body: Any = getattr(start, "base_model", start)
    passes_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    code = getattr(inspect.unwrap(type(start).forward), "__code__", None)
    constants = getattr(code, "co_consts", ())  # the arguments that its calls name: a string for one, else a tuple
    sets = any(one == "use_cache" or (isinstance(one, tuple) and "use_cache" in one) for one in constants)
    if "use_cache" not in parameters and passes_on and not sets and body is not start:
        return without_cache(body)
    return {"use_cache": False} if "use_cache" in parameters else {}


def returns_embedding(model: nn.Module) -> bool:
    """Whether a model has no head of labels or words: its output is an embedding, or its last layer."""
    projects = any(hasattr(model, name) for name in ("visual_projection", "text_projection"))
    return projects or getattr(model, "base_model", None) is model


def result_of(model: nn.Module, output: Any) -> Tensor:
    """The tensor for which a model is used: logits, an embedding, of images the pooled output, or hidden states."""
    pooled = ["pooler_output"] * (getattr(model, "main_input_name", "") == "pixel_values")
    for field in ("logits", "image_embeds", "text_embeds", *pooled):
        if isinstance(getattr(output, field, None), Tensor):
            return getattr(output, field)
    return main_output(output)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Tensors of an output: floating-point ones of each level first (codecs return codes first), then nested ones."""
    fields = output.to_tuple() if hasattr(output, "to_tuple") else output
    parts = list(fields.values() if isinstance(fields, dict) else fields)
    yield from (part for part in parts if isinstance(part, Tensor) and part.is_floating_point())
    for part in parts:
        if isinstance(part, dict | tuple | list):
            yield from _tensors(part)
    yield from (part for part in parts if isinstance(part, Tensor))


def logit_cap(config: Any) -> float | None:
    """The bound c of logits ``c * tanh(logits / c)``; None without. Under another name, attribution has an error."""
    names = ("final_logit_softcapping", "logits_soft_cap")
    caps = (getattr(config.get_text_config(), name, None) for name in names)
    return next(filter(None, caps), None)


# --- position tables ---

# Names of position tables. Under another name, a model seems to have none: `explain` skips analyses that need one, and
# a window may be longer than the table, so that the model itself fails.
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
# Tables that rotate queries and keys instead of being added to the inputs. A missing class here counts as added.
_TURNING = ("RoFormerSinusoidalPositionalEmbedding",)
# Names of masks, positions and rotations that older checkpoints store in every layer, and a model computes itself. A
# checkpoint with one under another name is rejected.
_COMPUTED = (
    "masked_bias",
    "attn_mask",
    "causal_mask",
    "position_ids",
    "token_type_ids",
    "relative_position_index",
    "relative_coords_table",
    "inv_freq",
    "original_inv_freq",
    "cos_cached",
    "sin_cached",
    "embed_positions",  # sines and cosines of GPT-J and CodeGen
    "num_batches_tracked",
    "version",
    "_float_tensor",
)
# Names of the projection from a narrower table to the model's width. Under another name, the table is analysed in its
# own width, and the first layer is not split into position and content.
_PROJECTIONS = ("embedding_hidden_mapping_in", "embeddings_project")
# Names of a class token. Under another name, its row counts as a position of the image.
_CLASS_TOKENS = ("cls_token", "class_embedding")


def is_position_table(name: str, *, buffer: bool = False) -> bool:
    """Whether a module, parameter or buffer of that name is a table of absolute positions."""
    return name.rpartition(".")[2] in (_BUFFERS if buffer else _TABLES)


def rotates_queries(module: nn.Module) -> bool:
    """Whether a position table rotates queries and keys instead of being added to the inputs."""
    return _class(module) in _TURNING


def stored_rows(table: nn.Module) -> Any:
    """The tensor of a position table; None under another name, as if there were no table."""
    return getattr(table, "weight", getattr(table, "weights", None))


def reserved_rows(table: nn.Module, beside: nn.Module, rows: int) -> int:
    """Number of rows at the start of a position table that belong to no position."""
    padding = getattr(table, "padding_idx", None)
    ids = getattr(beside, "position_ids", None)
    first = int(ids.flatten()[0]) if isinstance(ids, Tensor) and ids.numel() and not ids.is_meta else 0
    after = 0 if padding is None else padding + 1
    return max(int(getattr(table, "offset", 0)), after, first if 0 <= first < rows else 0)


def is_embedding_projection(name: str) -> bool:
    """Whether the linear layer of that name projects embeddings to the model's width."""
    return name.endswith(_PROJECTIONS)


def patch_size_of(config: Any) -> tuple[int, int] | None:
    """Rows and columns of pixels in one patch; None if the config has no patch size."""
    size: Any = getattr(config, "patch_size", None)
    if isinstance(size, int):
        return size, size
    pair = tuple(size) if isinstance(size, list | tuple) else ()
    return (pair[0], pair[1]) if len(pair) == 2 and all(isinstance(side, int) for side in pair) else None  # noqa: PLR2004


def frames_of(config: Any) -> int | None:
    """Frames that a video encoder reads at a time, from its config; None for other models."""
    counts = (getattr(config, name, None) for name in ("num_frames", "frames_per_clip"))
    count = next((count for count in counts if isinstance(count, int) and count > 0), None)
    return count if tubelet_of(config) is not None else None


def tubelet_of(config: Any) -> tuple[int, int, int] | None:
    """Frames, rows and columns of pixels in one token of a video; None if the config has no such size."""
    size: Any = getattr(config, "tubelet_size", 1)
    patch = patch_size_of(config)
    if isinstance(size, list | tuple):
        fits = len(size) == 3 and all(isinstance(side, int) for side in size)  # noqa: PLR2004
        return (size[0], size[1], size[2]) if fits else None
    return (size, *patch) if isinstance(size, int) and patch is not None else None


def image_token_of(config: Any) -> int | None:
    """The token for a piece of an image in a text; None if the config has none."""
    numbers = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((number for number in numbers if isinstance(number, int)), None)


def video_token_of(config: Any) -> int | None:
    """The token for a piece of a video; None if the config has none, or treats frames as images."""
    numbers = (getattr(config, name, None) for name in ("video_token_id", "video_token_index"))
    return next((number for number in numbers if isinstance(number, int)), None)


def merged_side(image_processor: Any) -> int:
    """Number of patches on a side that form one piece of an image for a decoder."""
    sizes = (getattr(image_processor, name, None) for name in ("merge_size", "spatial_merge_size"))
    return next((size for size in sizes if isinstance(size, int)), 1)


def is_video_processor(processor: Any) -> bool:
    """Whether a processor prepares whole videos and chooses frames itself, rather than images."""
    return "VideoProcessor" in type(processor).__name__


# Argument that skips the predictor of masked frames after a video encoder (V-JEPA 2). Under another name, it runs too,
# and its layers are measured as layers of the encoder.
_WITHOUT_PREDICTOR = "skip_predictor"


def without_predictor(model: nn.Module) -> dict[str, bool]:
    """Arguments that skip the predictor of a video model, if it has one."""
    return {_WITHOUT_PREDICTOR: True} if _WITHOUT_PREDICTOR in inspect.signature(model.forward).parameters else {}


def seconds_at_once(extractor: Any) -> int:
    """Longest sound in seconds that a model reads at once: Whisper's window, else 30."""
    return int(getattr(extractor, "chunk_length", 30))


def frames_of_window(model: Any, extractor: Any) -> tuple[int, float] | None:
    """Frames of a speech encoder's window (Whisper), and samples of each; None without a window."""
    window: Any = getattr(extractor, "n_samples", None)
    frames: Any = getattr(model.config, "max_source_positions", None)
    return None if window is None or frames is None else (int(frames), window / int(frames))


def frames_of_wave(model: Any, samples: int) -> tuple[int, float] | None:
    """Frames of an encoder of waveforms (Wav2Vec2), and samples between them; None for others."""
    count: Any = getattr(model, "_get_feat_extract_output_lengths", None)
    ratio: Any = getattr(model.config, "inputs_to_logits_ratio", None)
    return None if count is None or ratio is None else (int(count(samples)), float(ratio))


def transcript_length(config: Any) -> int | None:
    """Longest transcript in tokens for a speech decoder; None if the config has no limit."""
    return getattr(config, "max_target_positions", None)


def has_class_token(embeddings: nn.Module) -> bool:
    """Whether the first row of the position table belongs to a class token."""
    return any(getattr(embeddings, name, None) is not None for name in _CLASS_TOKENS)


# Position schemes of models without a table: part of a module's class or attribute name, and a description. They only
# explain why an analysis is skipped; under another name, the scheme is reported as unknown.
_SCHEMES = (
    ("alibi", "it lowers scores with distance (ALiBi)"),
    ("bloomattention", "it lowers scores with distance (ALiBi)"),
    ("mptattention", "it lowers scores with distance (ALiBi)"),
    ("roformersinusoidal", "it rotates queries and keys by their positions (RoPE)"),
    ("rotary", "it rotates queries and keys by their positions (RoPE)"),
    ("relative_attention_bias", "it adds a bias for each distance to the scores (T5)"),
    ("relative_position_bias", "it adds a bias for each distance to the scores"),
    ("rel_embeddings", "it compares queries and keys with vectors of distances (DeBERTa)"),
)
# The same for the setting `positions` of attnscope's own models
_NAMED = {
    "alibi": dict(_SCHEMES)["alibi"],
    "rope": dict(_SCHEMES)["rotary"],
    "t5": dict(_SCHEMES)["relative_attention_bias"],
    "none": "it has no position information",
}


def named_scheme(model: PreTrainedModel) -> str | None:
    """Position scheme of a model without a table, by names of its modules; None if unknown."""
    named = _NAMED.get(str(getattr(model.config, "positions", "")))
    if named is not None:
        return named
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return "it reads one token after another (a recurrent network)"
    names = {f"{name}.{_class(module)}".lower() for name, module in model.named_modules()}
    names |= {name.lower() for name, _ in model.named_parameters()}
    for mark, words in _SCHEMES:
        if any(mark in name for name in names) or getattr(model.config, mark, False):
            return words
    return None


# --- settings and weights ---

# Endings of settings that are widths, counts and ids of tokens. Any other number may be a distance between tokens (the
# window of a layer, the length of a block or of a table): a text that reaches as far is then verified whole.
_NO_DISTANCES = (
    *("hidden_size", "head_size", "intermediate_size", "vocab_size", "embedding_size", "split_size"),
    *("dim", "rank", "_heads", "_layers", "_labels", "_experts", "_token_id", "_features", "normalized_shape"),
    *("d_model", "d_ff", "d_kv", "d_head", "d_inner", "n_embd", "n_inner", "n_head", "n_layer"),
    *("nx", "nf", "query_pre_attn_scalar", "ignore_index"),
)


_LIBRARIES = ("torch", "transformers", "attnscope")


def has_other_code(model: PreTrainedModel) -> bool:
    """Whether a module is of another package than PyTorch, transformers and ours: a distance may be in its code."""
    return any(type(module).__module__.partition(".")[0] not in _LIBRARIES for module in model.modules())


def may_have_distances(model: PreTrainedModel, least: int, most: int) -> bool:
    """Whether a setting of a model or of its modules may be a distance between tokens, from `least` to below `most`."""
    sides = (model.config.get_text_config(encoder=True), model.config.get_text_config(decoder=True))
    words = {getattr(side, "vocab_size", None) for side in sides}  # also the rows of a table
    settings = [model.config.to_dict(), *(vars(module) for module in model.modules())]
    return any(least <= number < most and number not in words for number in _distances(settings))


def _distances(setting: Any) -> Iterator[int]:
    """The sizes of whole numbers in settings, without those of widths."""
    if type(setting) is int:
        yield abs(setting)
    elif isinstance(setting, dict):
        for name, value in setting.items():
            yield from () if str(name).endswith(_NO_DISTANCES) else _distances(value)
    elif isinstance(setting, list | tuple):
        for value in setting:
            yield from _distances(value)


def configured_length(config: Any) -> int | None:
    """Longest text in tokens, from the model's config; None if it has no limit."""
    return getattr(config, "max_position_embeddings", None)


def counts_something_listed(setting: str) -> bool:
    """Whether a setting counts layers or labels, for which transformers builds a list before the model."""
    return "layer" in setting or "label" in setting


def counts_layers(setting: str) -> bool:
    """Whether a setting is a number of layers, which cannot be negative."""
    return setting.endswith("layers") or setting == "n_layer"


def is_pooler(tensor: str) -> bool:
    """Whether a tensor belongs to a pooler, which a checkpoint may lack because no attention layer reads it."""
    return "pooler" in tensor


def is_computed(tensor: str) -> bool:
    """Whether a tensor of that name is no weight, though older checkpoints store it: a mask, positions, rotations."""
    return tensor in _COMPUTED
