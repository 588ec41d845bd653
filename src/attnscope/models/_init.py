"""How the weights of the lineage's models begin."""

from __future__ import annotations

from torch import nn
from transformers import initialization as init

from attnscope.attention import LearnedPositions


def init_weights(module: nn.Module) -> None:
    """Glorot for matrices, orthogonal for what turns a state into the next, 1/sqrt(width) for tokens; biases are 0.

    Learned positions begin near zero, as in BERT and GPT-2: their waves are then what training made, not noise.
    transformers' own functions are used, which leave alone what a checkpoint gave.
    """
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(module, LearnedPositions):
            init.normal_(parameter, std=0.02)
        elif isinstance(module, nn.Embedding):
            init.normal_(parameter, std=module.embedding_dim**-0.5)
        elif parameter.ndim == 1:
            init.constant_(parameter, 1.0 if isinstance(module, nn.LayerNorm) and name == "weight" else 0.0)
        elif name.startswith("weight_hh"):
            init.orthogonal_(parameter)
        else:
            init.xavier_uniform_(parameter)
