"""A config that asks for more than its weights hold is refused before anything is allocated."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from attnscope.capture._settings import every_setting
from attnscope.errors import AttnscopeError

_TIMES = 4  # what is tied, shared or missing stands once in the files, and more often in the model
_PACKED = 32  # numbers that quantised weights hold in one
_TENSORS, _NUMBERS = 2_000, 1 << 26  # and what a head, a mask or a table of waves may add


@contextmanager
def no_larger_than(tensors: dict[str, Any], config: dict[str, Any]) -> Generator[None]:
    """Stop the building of a model, on the meta device, as soon as it is far larger than its weights.

    Parameters
    ----------
    tensors
        The tensors of the files, by name.
    config
        What config.json says; quantised weights hold several numbers in one.

    Raises
    ------
    AttnscopeError
        If the model has many times the tensors or the numbers that the weights have.
    """
    held = sum(math.prod(tensor.get_shape()) for tensor in tensors.values())
    packed = any(name == "quantization_config" and value for name, value in every_setting(config))
    most = _TENSORS + _TIMES * len(tensors), _NUMBERS + _TIMES * (_PACKED if packed else 1) * held
    seen = [0, 0]
    here = threading.get_ident()

    def count(_: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is None or not tensor.is_meta or threading.get_ident() != here:
            return
        seen[0] += 1
        seen[1] += tensor.numel()
        if seen[0] > most[0] or seen[1] > most[1]:
            raise AttnscopeError(
                f"config.json asks for a model of more than {seen[0]:,} tensors and {seen[1]:,} numbers (at {name}); "
                f"the weights hold {len(tensors):,} and {held:,}. Is it the right config.json?"
            )

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
