"""How large the tensors are that are made on the way."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope.kernels.masks import OffsetBias, RowMask


class Largest(TorchDispatchMode):
    """Notes the most memory that one tensor takes, in numbers."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, OffsetBias | RowMask):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made
