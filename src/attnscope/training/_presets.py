"""Systems that learn the generated task in a few minutes on two cores: with and without attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.training.config import MODEL_SETTINGS, TrainConfig, read_config, refuse_other_models

# Every word is one token. Up to four sentences in one have up to 67 words, more than a vector of 128 numbers was found
# to hold, and there are enough short ones to begin with.
_TASK: dict[str, Any] = {
    "task_longest": 16,
    "task_pairs": 50_000,
    "join": 4,
    "vocabulary": 400,
    "batch_tokens": 1024,
    "validate_every": 300,
    "learning_rate": 4e-3,
    "schedule": "cosine",
    "warmup": 100,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "average": 3,
    "threads": 1,  # steps this small are not worth sharing,
    "precision": "float32",  # nor their matrices casting to bfloat16 and back
}
_RECURRENT: dict[str, Any] = {
    **_TASK,
    "model": "recurrent",
    "embedding_width": 64,
    "encoder_width": 64,
    "decoder_width": 128,
}
# Without dropout attention looks at neighbours, whose states know the word too.
_ALIGNING: dict[str, Any] = {**_RECURRENT, "dropout": 0.2}
_TRANSFORMER: dict[str, Any] = {
    **_TASK,
    "model": "transformer",
    "width": 96,
    "feed_forward": 192,
    "layers": 2,
    "learning_rate": 3e-3,
    "positions": "rope",  # sinusoidal ones fell behind on the longest sentences
}

PRESETS: dict[str, TrainConfig] = {
    "fixed vector": read_config(**_RECURRENT, attention="none", updates=2400),  # twice: it learns slowly
    "additive": read_config(**_ALIGNING, attention="additive", updates=1100),
    "Transformer": read_config(**_TRANSFORMER, updates=1500),
}


def shown_default(name: str, usual: str) -> str:
    """A setting's default in words, and what the generated task takes in its place.

    Examples
    --------
    >>> shown_default("positions", "sinusoidal"), shown_default("heads", "4"), shown_default("cell", "gru")
    ('sinusoidal; without data and config rope', '4', 'gru')
    >>> shown_default("updates", "5000")
    '5000; without data and config 1100 (attention none: 2400, transformer: 1500)'
    """
    default = TrainConfig.model_fields[name].default
    of = {system: getattr(config, name) for system, config in PRESETS.items() if name in config.settings()}
    if name == "attention" or all(value == default for value in of.values()):
        return usual
    first, *_ = (of[system] for system in ("additive", "Transformer") if system in of)
    others = {"attention none": of.get("fixed vector", first), "transformer": of.get("Transformer", first)}
    told = ", ".join(f"{model}: {value}" for model, value in others.items() if value != first)
    return f"{usual}; without data and config {first}" + (f" ({told})" if told and name != "model" else "")


def preset(model: str | None = None, attention: str | None = None) -> TrainConfig:
    """The one for a kind of model; other attention than none is trained as additive attention is.

    Examples
    --------
    >>> preset("transformer").layers, preset(attention="none").updates, preset(attention="dot").updates
    (2, 2400, 1100)
    """
    if model in {None, "recurrent"}:
        return PRESETS["fixed vector" if attention == "none" else "additive"]
    return PRESETS["Transformer"]


def said_of_preset(asked: TrainConfig) -> str:
    """The model of the generated task in words, with what differs from its usual settings.

    Examples
    --------
    >>> said_of_preset(settings_for(None, model="transformer", layers=4))
    'no data: a generated task, and a small transformer (width 96, feed_forward 192, positions rope)'
    """
    differ = ", ".join(
        f"{name} {value}"
        for name, value in asked.settings().items()
        if name in MODEL_SETTINGS and value != TrainConfig.model_fields[name].default
    )
    return f"no data: a generated task, and a small {asked.model}" + (f" ({differ})" if differ else "")


def settings_for(config: TrainConfig | Path | str | None, **settings: object) -> TrainConfig:
    """What a training is asked for: a file or settings, else the preset of the model, with some of them replaced.

    Raises
    ------
    AttnscopeError
        As `read_config`.

    Examples
    --------
    >>> settings_for(None, model="transformer", layers=3, updates=None).layers
    3
    """
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if config is None and not {"source", "text"} & given.keys():
        config = preset(given.get("model"), given.get("attention"))
    if not isinstance(config, TrainConfig):
        return read_config(None if config is None else Path(config), **given)
    asked = read_config(**{**config.model_dump(), **given})
    refuse_other_models(given, asked.model)
    return asked
