"""Systems that learn the generated task in a few minutes on two cores: with and without attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.training.config import TrainConfig, read_config, refuse_other_models

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
