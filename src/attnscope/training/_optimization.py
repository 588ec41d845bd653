"""What a step of the optimizer takes: parameters that decay, a rate, tokens, and numbers of half the width."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnscope.training._batches import IGNORED
from attnscope.training._data import Batch
from attnscope.training._schedules import learning_rate
from attnscope.training.config import TrainConfig


def decayed(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters as AdamW takes them: matrices and tables decay, biases and LayerNorms do not.

    Examples
    --------
    >>> [len(group["params"]) for group in decayed(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), 0.1)]
    [1, 3]
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def target_tokens(batch: Batch) -> int:
    """How many tokens a batch asks for.

    Examples
    --------
    >>> target_tokens({"labels": torch.tensor([[5, 2], [2, -100]])})
    3
    """
    return int((batch["labels"] != IGNORED).sum())


def multiplies_bfloat16(device: str) -> bool:
    """Whether the processor multiplies bfloat16 natively, so that it is faster than float32.

    Examples
    --------
    >>> multiplies_bfloat16("meta")
    False
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    cpu: Any = torch.cpu
    return device == "cpu" and (cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())  # noqa: SLF001


def rate_of(config: TrainConfig, step: int) -> float:
    """Learning rate of an update, from 1.

    Examples
    --------
    >>> rate_of(TrainConfig(learning_rate=1.0, warmup=4), 16)
    0.5
    """
    return learning_rate(
        step,
        config.schedule,
        peak=config.learning_rate,
        warmup=config.warmup,
        last=config.updates,
        width=config.decoder_width if config.model == "recurrent" else config.width,
        cooldown=config.cooldown,
    )
