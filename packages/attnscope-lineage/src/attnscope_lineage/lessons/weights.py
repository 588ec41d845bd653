"""Trained weights that a lesson's page computes with."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors as one block of 32-bit numbers in base64, and their names and shapes: what ``weights.js`` reads."""
    block = b"".join(tensor.detach().float().contiguous().numpy().tobytes() for tensor in tensors.values())
    shapes = [[name, list(tensor.shape)] for name, tensor in tensors.items()]
    return {"shapes": shapes, "block": base64.b64encode(block).decode("ascii")}
