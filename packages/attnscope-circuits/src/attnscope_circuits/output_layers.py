"""The layers behind the last block of a classifier or an encoder, as a linear function of what it returns."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from attnscope.capture.families import is_norm
from attnscope.capture.watching import attached
from attnscope.explanation.stream import Fold, fold_of
from attnscope.support.state import frozen

#: Functions of each number, 0 at 0: a product of their input and a factor.
_ACTIVATIONS = {
    torch.tanh, Tensor.tanh, torch.relu, Tensor.relu, nn.functional.relu, nn.functional.gelu, nn.functional.silu,
}  # fmt: skip


class _FrozenFactors(TorchFunctionMode):
    """Activations behind the last block as products with a constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func not in _ACTIVATIONS or not returned.requires_grad:
            return returned
        received = args[0]
        return received * torch.where(received == 0, 0, returned / received).detach()


@dataclass(eq=False)
class OutputLayers:
    """The layers behind the last block: hooks on the last block and on norms.

    Their norms keep the denominators of the pass, as those before them do, and their activations the factor by which
    each multiplies its input.
    """

    model: PreTrainedModel
    block: str  # the last block
    run: int  # its number among the runs of the module in a pass
    states: Tensor | None = None  # the output of the block in the last pass
    replacement: Tensor | None = None  # of it, for the next pass
    count: int = 0  # of the module's runs in the pass
    folds: dict[nn.Module, Fold | None] = field(default_factory=dict[nn.Module, Any])

    @contextmanager
    def hooked(self, replacement: Tensor | None = None) -> Generator[None]:
        """In one pass, let the output of the block be a leaf of the graph, or a replacement."""
        self.states, self.replacement, self.count = None, replacement, 0
        norms = [module for module in self.model.modules() if is_norm(module)]
        hooks = [self.model.get_submodule(self.block).register_forward_hook(self._begin)]
        hooks += [] if replacement is not None else [norm.register_forward_hook(self._freeze) for norm in norms]
        linear = _FrozenFactors() if replacement is None else nullcontext()
        with attached(iter(hooks)), frozen(self.model), torch.set_grad_enabled(replacement is None), linear:
            yield

    def _begin(self, _: nn.Module, __: Any, returned: Any) -> Any:
        self.count += 1
        if self.count <= self.run:
            return None
        states = returned[0] if isinstance(returned, tuple) else returned
        self.states = states.detach().requires_grad_() if self.replacement is None else self.replacement
        return (self.states, *returned[1:]) if isinstance(returned, tuple) else self.states

    def _freeze(self, norm: nn.Module, arguments: tuple[Tensor, ...], returned: Tensor) -> Tensor | None:
        """The same norm, of which the denominator of each row is a constant."""
        received = arguments[0]
        if self.states is None or not received.requires_grad:
            return None
        if norm not in self.folds:
            self.folds[norm] = fold_of(norm, received.shape[-1])
        fold = self.folds[norm]
        if fold is None:
            return None
        size, bias = fold.frozen(norm, received.detach().double(), returned.detach().double())
        return (fold.of(received.double()) * size + bias).to(returned.dtype)
