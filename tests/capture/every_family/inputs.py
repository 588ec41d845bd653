"""What a model of any family reads: random, and as little as it takes."""

import inspect
from collections.abc import Iterator

import torch

from tests.capture.every_family.inputs_by_family import INPUTS
from tests.capture.every_family.sessions import WITH_SESSION, session_of
from tests.capture.every_family.shrink import text_of

LENGTH, TARGET, FRAMES = 24, 17, 256
_VARIANTS = ("frames first", "long", "one channel", "pair", "two frames a patch")


def inputs_of(model):
    """Arguments of a forward pass: the first of several attempts that the model takes.

    Raises
    ------
    Exception
        What the model raised on the first attempt, if it takes none.
    """
    if model.config.model_type in WITH_SESSION:
        return session_of(model)
    first = None
    for given in _attempts(model):
        try:
            with torch.no_grad():
                model(**given)
        except Exception as error:  # noqa: BLE001 families raise what they like
            first = first or error
        else:
            return given
    raise first


def _attempts(model) -> Iterator[dict]:
    if model.config.model_type in INPUTS:
        torch.manual_seed(0)
        yield INPUTS[model.config.model_type](model.config)
    asked = inspect.signature(model.forward).parameters
    needed = [
        name
        for name, one in asked.items()
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    main = model.main_input_name
    names = [*([main] if isinstance(main, str) else main), *needed]
    if "decoder_input_ids" in asked and (model.config.is_encoder_decoder or "decoder_input_ids" in needed):
        names.append("decoder_input_ids")
    yield _made(names, model.config)
    beside = [name for name in _MAKERS if name in asked and name not in names]
    for more in beside:
        yield _made([*names, more], model.config)
    for both in (("visual_feats", "visual_pos"), ("pixel_values", "input_ids"), ("input_ids", "input_features")):
        if set(both) <= set(asked):
            yield _made([*names, *both], model.config)
    yield _made([*names, *beside], model.config)
    for variant in _VARIANTS:
        yield _made(names, model.config, variant)
    for main in ("input_ids", "pixel_values", "input_features", "input_values", "inputs_embeds"):
        if main in asked:
            yield _made([main], model.config)


def _made(names, config, variant=""):
    torch.manual_seed(0)
    given = {name: _MAKERS[name](config, variant) for name in dict.fromkeys(names) if name in _MAKERS}
    if "image_grid_thw" in given or "grid_thw" in given:
        for name in ("pixel_values", "hidden_states"):
            if name in given:
                given[name] = _patches(config, 2 if variant == "two frames a patch" else 1)
    return given


def _find(config, name, default=None):
    """A setting, here or in a part."""
    value = getattr(config, name, None)
    if value is not None:
        return value
    for part in getattr(config, "sub_configs", {}):
        inner = getattr(config, part, None)
        if inner is not None and (found := _find(inner, name)) is not None:
            return found
    return default


def _ids(length):
    def make(config, _):
        top = min(_find(text_of(config), "vocab_size", 60) or 60, 60)
        return torch.randint(3, top, (1, length))

    return make


def _picture(config, variant):
    size = _find(config, "image_size", 64)
    size = (size, size) if isinstance(size, int) else tuple(size)
    frames = 2 if variant == "pair" else _find(config, "num_frames")
    channels = _find(config, "num_channels", 3)
    return torch.randn(1, *((frames,) if frames else ()), channels, *size)


def _sound(config, variant):
    bands = _find(config, "num_mel_bins") or _find(config, "feature_size", 80)
    return torch.randn(1, FRAMES, bands) if variant == "frames first" else torch.randn(1, bands, FRAMES)


def _wave(variant):
    wave = torch.randn(1, 9600 if variant == "long" else 4000)
    return wave[:, None] if variant == "one channel" else wave


def _patches(config, frames):
    patch = _find(config, "patch_size", 14)
    channels = _find(config, "in_channels") or _find(config, "in_chans") or _find(config, "num_channels", 3)
    return torch.randn(16, channels * _find(config, "temporal_patch_size", frames) * patch * patch)


_MAKERS = {
    "input_ids": _ids(LENGTH),
    "decoder_input_ids": _ids(TARGET),
    "pixel_values": _picture,
    "input_features": _sound,
    "input_values": lambda config, variant: _wave(variant),
    "input_features_mask": lambda config, _: torch.ones(1, FRAMES, dtype=torch.long),
    "bbox": lambda config, _: torch.zeros(1, LENGTH, 4, dtype=torch.long),
    "grid_thw": lambda config, _: torch.tensor([[1, 4, 4]]),
    "image_grid_thw": lambda config, _: torch.tensor([[1, 4, 4]]),
    "hidden_states": lambda config, _: torch.randn(1, LENGTH, _find(config, "hidden_size", 64)),
    "inputs_embeds": lambda config, _: torch.randn(1, LENGTH, _find(text_of(config), "hidden_size", 64)),
    "query_embeds": lambda config, _: torch.randn(1, 8, _find(config, "hidden_size", 64)),
    "encoder_hidden_states": lambda config, _: torch.randn(
        1, LENGTH, _find(config, "encoder_hidden_size") or _find(config, "hidden_size", 64)
    ),
    "visual_feats": lambda config, _: torch.randn(1, 8, _find(config, "visual_feat_dim", 2048)),
    "visual_pos": lambda config, _: torch.rand(1, 8, _find(config, "visual_pos_dim", 4)),
    "flattened_patches": lambda config, _: torch.rand(1, LENGTH, 2 + _find(config, "patch_embed_hidden_size", 768)),
    "qformer_input_ids": _ids(8),
    "past_values": lambda config, _: torch.rand(1, 32, _find(config, "num_input_channels", 1)),
}
