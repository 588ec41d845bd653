"""Systems that learn the generated task in a few minutes on two cores: with and without attention."""

from __future__ import annotations

from typing import Any

from attnscope.translation.config import TrainConfig, read_config

# Every word is one token. Up to four sentences in one have up to 67 words, more than a vector of 256 numbers was found
# to hold, and there are enough short ones to begin with.
_TASK: dict[str, Any] = {
    "task_longest": 16,
    "task_pairs": 50_000,
    "join": 4,
    "vocabulary": 400,
    "batch_tokens": 1024,
    "updates": 2000,
    "validate_every": 250,
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "warmup": 100,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "average": 3,
}
_RECURRENT: dict[str, Any] = {
    **_TASK,
    "model": "recurrent",
    "embedding_width": 64,
    "encoder_width": 128,
    "decoder_width": 256,
}
_TRANSFORMER: dict[str, Any] = {
    **_TASK,
    "model": "transformer",
    "width": 96,
    "feed_forward": 192,
    "layers": 2,
}

PRESETS: dict[str, TrainConfig] = {
    "fixed vector": read_config(**_RECURRENT, attention="none"),
    "additive": read_config(**_RECURRENT, attention="additive"),
    "Transformer": read_config(**_TRANSFORMER),
}
