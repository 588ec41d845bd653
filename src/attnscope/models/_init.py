"""How the weights of the lineage's models begin."""

from __future__ import annotations

from torch import nn
from transformers import initialization as init

from attnscope.attention import LearnedPositions


def init_weights(module: nn.Module) -> None:
    """Glorot for matrices, orthogonal for what turns a state into the next; biases are 0.

    Rows of tokens and of learned positions have the deviation 1/sqrt(width), and both are multiplied by its inverse.
    transformers' own functions are used, which leave alone what a checkpoint gave.
    """
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(module, (nn.Embedding, LearnedPositions)):
            init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif parameter.ndim == 1:
            init.constant_(parameter, 1.0 if isinstance(module, nn.LayerNorm) and name == "weight" else 0.0)
        elif name.startswith("weight_hh"):
            init.orthogonal_(parameter)
        else:
            init.xavier_uniform_(parameter)
