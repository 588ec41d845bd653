"""How large the tensors are that are made on the way."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.kernels.masks import OffsetBias


class Largest(TorchDispatchMode):
    """Notes the most memory that one tensor takes, in numbers."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, OffsetBias):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made
