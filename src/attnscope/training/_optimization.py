"""What a step of the optimizer takes: parameters that decay, a rate, tokens, and numbers of half the width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from attnscope.models import IGNORED
from attnscope.training._data import Batch
from attnscope.training._schedules import learning_rate
from attnscope.training.config import TrainConfig


class Optimizers:
    """The optimizers of a model, each with parameters of its own, as one.

    With ``muon`` the matrices of the layers take orthogonalised steps (Jordan et al. 2024), as large as AdamW's by root
    mean square (Liu et al. 2025), so that one learning rate serves both. Embedding tables, biases and LayerNorms have
    AdamW, which ``adamw`` has for all.

    Parameters
    ----------
    model, config
        Model and config of the training.

    Attributes
    ----------
    state
        Moments of each parameter, by their names.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> optimizers = Optimizers(layer, TrainConfig(optimizer="muon"))
    >>> optimizers.step(rate=0.1)
    >>> [sorted(optimizers.state[parameter]) for parameter in (layer.weight, layer.bias)]
    [['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step']]
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        matrices = [
            parameter
            for parameter in model.parameters()
            if _is_matrix(parameter) and id(parameter) not in tables
        ]
        chosen = {id(parameter) for parameter in matrices} if config.optimizer == "muon" else set[int]()
        rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        self._each: list[Optimizer] = [
            AdamW(
                decayed(rest, config.weight_decay),
                lr=config.learning_rate,
                betas=(0.9, config.adam_beta2),
                fused=True,
            )
        ]
        self.state = self._each[0].state
        if chosen:
            decay = config.weight_decay
            muon = Muon(matrices, lr=config.learning_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            # one place for all moments, which checkpoints keep: each optimizer reads those of its own parameters
            muon.state = self.state
            self._each.append(muon)

    def step(self, rate: float) -> None:
        """Move all parameters at a learning rate, and forget the gradients."""
        for optimizer in self._each:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def decayed(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameters as AdamW takes them: matrices and tables decay, biases and LayerNorms do not.

    Examples
    --------
    >>> layers = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [len(group["params"]) for group in decayed(layers.parameters(), 0.1)]
    [1, 3]
    """
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if _is_matrix(parameter)]
    vectors = [parameter for parameter in parameters if not _is_matrix(parameter)]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def _is_matrix(parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1


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
