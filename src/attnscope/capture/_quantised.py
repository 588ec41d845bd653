"""Weights rounded to whole numbers, by torchao: a model in a quarter or an eighth of its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from attnscope.capture._team import whole
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from torch import Tensor

INTEGERS = ("int8", "int4")
_GROUP = 32  # weights of a row that share a scale in int4, where rows fall into such groups


def quantised(model: nn.Module, kind: str) -> str:
    """Round the weights of all linear layers of a model, in place.

    In int8 each row has a scale of its own; in int4 each 32 weights of a row do, where rows fall into such groups.

    Parameters
    ----------
    model
        It keeps the type of all else, in which it also computes.
    kind
        ``int8`` or ``int4``.

    Returns
    -------
    str
        How the weights were rounded and by which version: for the signature.

    Raises
    ------
    AttnscopeError
        If torchao is not installed, or layers are not `torch.nn.Linear`.

    Examples
    --------
    >>> layer = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> how = quantised(layer, "int8")  # doctest: +SKIP
    """
    try:
        import torchao  # pyright: ignore[reportMissingImports]
        from torchao.quantization import (  # pyright: ignore[reportMissingImports]
            IntxWeightOnlyConfig,
            PerGroup,
            quantize_,
        )
    except ImportError as error:
        raise AttnscopeError(
            f"--dtype {kind} needs torchao, which is not installed: pip install 'attnscope[int]'"
        ) from error
    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise AttnscopeError(
            f"{type(model).__name__} multiplies by transformers' Conv1D, which torchao does not round: leave out "
            f"--dtype {kind}, or take float16"
        )
    rows = IntxWeightOnlyConfig(weight_dtype=getattr(torch, kind))
    if kind == "int8":
        quantize_(model, rows)
    else:
        groups = IntxWeightOnlyConfig(weight_dtype=rows.weight_dtype, granularity=PerGroup(_GROUP))
        quantize_(model, groups, filter_fn=lambda module, _: _splits(module))
        quantize_(
            model, rows, filter_fn=lambda module, _: isinstance(module, nn.Linear) and not _splits(module)
        )
    return f"{kind}, torchao {torchao.__version__}"


def _splits(module: nn.Module) -> bool:
    """Whether the rows of a linear layer's weights fall into whole groups."""
    return isinstance(module, nn.Linear) and module.in_features % _GROUP == 0


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for: of rounded weights what they are multiplied with, of a part the whole.

    Examples
    --------
    >>> float(plain(torch.tensor(0.5)))
    0.5
    """
    stands_for: Any = getattr(tensor, "dequantize", None)
    return stands_for() if type(tensor).__module__.startswith("torchao.") else whole(tensor)
