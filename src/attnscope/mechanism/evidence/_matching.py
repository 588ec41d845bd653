"""Which linear layer's output a query, key or value is: the search behind `projections`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.attention import Rotation
from attnscope.capture import plain

# Largest difference of two computations of one number, as a share of the largest
SAME = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(eq=False)
class LayerRun:
    """One linear layer or norm that ran."""

    name: str
    module: nn.Module
    given: Tensor
    returned: Tensor


@dataclass(frozen=True, eq=False)
class Match:
    """Where one of query, key and value comes from."""

    event: LayerRun
    columns: np.ndarray  # (head, r): of the linear layer's output
    factor: float
    rotation: Rotation | None = None
    normalised: str = ""  # the norm in between

    @property
    def weight(self) -> np.ndarray:
        """``(head, width, r)``."""
        weight = self.event.module.weight
        assert isinstance(weight, Tensor)  # noqa: S101 of a linear layer
        whole = plain(weight).detach().double().cpu().numpy()
        whole = whole if isinstance(self.event.module, Conv1D) else whole.T  # (in, out)
        return np.ascontiguousarray(np.moveaxis(whole[:, self.columns], 1, 0))

    @property
    def bias(self) -> np.ndarray:
        """``(head, r)``, zero where the layer has none."""
        bias = self.event.module.bias
        if not isinstance(bias, Tensor):
            return np.zeros(self.columns.shape)
        return bias.detach().double().cpu().numpy()[self.columns]


@dataclass(eq=False)
class PathSearch:
    """The linear layers and norms within one attention module, and the ways they can lead to a query or key."""

    linears: list[LayerRun]
    norms: list[LayerRun]
    rotations: list[Rotation]

    def match(self, target: Tensor, *, groups: int | None, plain: bool = False) -> Match | None:
        """Find where `target` ``(batch, head, position, r)`` comes from."""
        match = self._linear(target, groups, [None])
        if match is not None or plain:
            return match
        return self._linear(target, groups, self.rotations) or self._norm(target, groups)

    def _linear(self, target: Tensor, groups: int | None, turns: Sequence[Rotation | None]) -> Match | None:
        batch, heads, length, width = target.shape
        for event in self.linears:
            if event.returned.numel() % (batch * length):
                continue
            returned = event.returned.reshape(batch, length, -1)
            for columns in slices_of(returned.shape[2], heads, width, groups):
                candidate = returned[:, :, torch.from_numpy(columns).to(returned.device)].transpose(1, 2)
                for turn in turns:
                    if turn is not None and not _same_norms(candidate, target):
                        continue
                    factor = factor_of(target, candidate if turn is None else turn(candidate))
                    if factor is not None:
                        return Match(event, columns, factor, turn)
        return None

    def _norm(self, target: Tensor, groups: int | None) -> Match | None:
        """A norm between the linear layer and the query."""
        for norm in self.norms:
            if norm.returned.numel() != target.numel():
                continue
            after, before = (_by_head(states, target.shape) for states in (norm.returned, norm.given))
            for turn in (None, *self.rotations):
                if factor_of(target, after if turn is None else turn(after)) is None:
                    continue
                match = self._linear(before, groups, [None])
                if match is not None:
                    return Match(match.event, match.columns, match.factor, turn, norm.name)
        return None


def _by_head(tensor: Tensor, shape: torch.Size) -> Tensor:
    """``(batch, head, position, r)``, whatever order the norm saw."""
    batch, heads, length, width = shape
    if tensor.shape == shape:
        return tensor
    return tensor.reshape(batch, length, heads, width).transpose(1, 2)


def _same_norms(candidate: Tensor, target: Tensor) -> bool:
    """Turning keeps norms up to one factor: a cheap look before every angle is tried.

    Sines and cosines are often float32 whatever the model is, so the norms are kept no better than that.
    """
    limit = max(1e-5, 10 * SAME.get(target.dtype, 2e-5))
    return factor_of(target.double().norm(dim=-1), candidate.double().norm(dim=-1), limit) is not None


def factor_of(target: Tensor, candidate: Tensor, limit: float | None = None) -> float | None:
    """The number that makes `candidate` into `target`, None where there is none."""
    limit = SAME.get(target.dtype, 2e-5) if limit is None else limit
    wide_target, wide = target.double(), candidate.double()
    power = float((wide * wide).sum())
    largest = float(wide_target.abs().max())
    if power == 0 or largest == 0:  # a planted layer may be zero: zero is zero
        return 1.0 if power == 0 and largest == 0 else None
    factor = float((wide_target * wide).sum()) / power
    if factor <= 0 or float((wide_target - factor * wide).abs().max()) > limit * largest:
        return None
    return 1.0 if abs(factor - 1) < limit else factor


def slices_of(out: int, heads: int, width: int, groups: int | None) -> Iterator[np.ndarray]:
    """Columns ``(head, r)`` of a linear layer's output that could be one of query, key and value."""
    whole = np.arange(heads * width).reshape(heads, width)
    for start in range(0, out - heads * width + 1, width):  # side by side: q of all heads, then k, then v
        yield start + whole
    for blocks in {
        heads,
        groups or heads,
    }:  # head by head (GPT-NeoX), or with the keys of a group after its queries
        block = out // blocks
        if out % blocks or block == heads // blocks * width or block < heads // blocks * width:
            continue
        inner = np.arange(heads // blocks * width).reshape(heads // blocks, width)
        for start in range(0, block - inner.size + 1, width):
            yield np.concatenate([block * number + start + inner for number in range(blocks)])
