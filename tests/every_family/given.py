"""What a model of any family reads: random, and as little as it takes."""

import inspect

import torch

LENGTH = 24
_generator = torch.Generator()


def inputs_of(model):
    """Arguments of a forward pass, made from the names that the model asks for."""
    _generator.manual_seed(0)
    asked = inspect.signature(model.forward).parameters
    main = model.main_input_name
    config = model.config
    given = {main: _made(main, config)}
    for name, parameter in asked.items():
        wanted = parameter.default is inspect.Parameter.empty and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if (wanted or name in _ALWAYS(model)) and name not in given and name not in ("self",):
            value = _made(name, config)
            if value is not None:
                given[name] = value
    return {k: v for k, v in given.items() if v is not None}


def _ALWAYS(model):
    return {"decoder_input_ids"} if model.config.is_encoder_decoder and "input_ids" in inspect.signature(model.forward).parameters or "decoder_input_ids" in inspect.signature(model.forward).parameters else set()


def _text(config):
    try:
        return config.get_text_config()
    except Exception:
        return config


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


def _square(size):
    return (size, size) if isinstance(size, int) else tuple(size)


def _made(name, config):
    if name.endswith("input_ids"):
        top = min(_find(_text(config), "vocab_size", 60) or 60, 60)
        return torch.randint(3, top, (1, LENGTH if name == "input_ids" else 17), generator=_generator)
    if name in ("pixel_values", "images"):
        size = _square(_find(config, "image_size", 64))
        return torch.randn(1, _find(config, "num_channels", 3), *size, generator=_generator)
    if name == "input_features":
        mel = _find(config, "num_mel_bins", None) or _find(config, "feature_size", 80)
        return torch.randn(1, mel, 200, generator=_generator)
    if name in ("input_values",):
        return torch.randn(1, 4000, generator=_generator)
    if name in ("bbox",):
        return torch.zeros(1, LENGTH, 4, dtype=torch.long)
    return None
