"""The keys in vLLM's cache, in whatever order an attention backend keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.support.errors import AttnscopeError

_DIGIT = 7  # bits of a number that are written at once: bfloat16 has 8


@dataclass(frozen=True, eq=False)
class LayerCache:
    """The keys of one layer by block, ``(block, slot, kv_head, width)``, for `attnscope_vllm.paged.PagedCall`."""

    module: Any  # vLLM's attention layer
    group: int  # of the layers that share tables of blocks
    parts: int  # blocks of the backend in one of the scheduler
    keys: tuple[int, int, int]  # slots of a block, key-value heads, width
    index: Tensor  # where each number of the keys is in the memory of a block

    @classmethod
    def of(cls, module: Any, group: int, slots: int, blocks: int) -> LayerCache:
        """Find the order by letting the backend write numbers into a cache of two blocks.

        Backends of CPUs interleave tokens by the instructions of the processor; others put heads or tokens first.
        """
        cache, keys = module.kv_cache, (slots, module.num_kv_heads, module.head_size)
        write = getattr(module.impl, "do_kv_cache_update", None)
        parts = len(cache) // blocks
        two = cache.new_empty_strided((2 * parts, *cache.shape[1:]), cache.stride())
        numbers = torch.arange(slots * keys[1] * keys[2], device=cache.device).view(keys)
        second = torch.arange(slots, 2 * slots, device=cache.device)
        found = torch.zeros(two[:parts].numel(), dtype=torch.int64, device=cache.device)
        is_key = found > 0
        for shift in range(0, numbers.numel().bit_length(), _DIGIT):
            if write is None:  # the backend writes keys within its attention
                break
            two.zero_()
            key = ((numbers >> shift) % (1 << _DIGIT) + 1).to(cache.dtype)  # 0 is where no key is
            write(module, key, torch.zeros_like(key), two, second)
            digit = two[parts:].reshape(-1).long()
            is_key = digit > 0
            found += (digit - 1).clamp_min(0) << shift
        order = found[is_key].sort()
        if not torch.equal(order.values, numbers.flatten()):
            raise AttnscopeError(
                f"the keys of {module.layer_name} are not found in the cache of {type(module.impl).__name__}: choose "
                "another attention_backend, such as FLASH_ATTN or TRITON_ATTN"
            )
        return cls(module, group, parts, keys, is_key.nonzero()[:, 0][order.indices])

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the keys of all blocks."""
        return (len(self.module.kv_cache) // self.parts, *self.keys)

    def __getitem__(self, blocks: Tensor) -> Tensor:
        parts = torch.arange(self.parts, device=blocks.device)
        whole = self.module.kv_cache[(blocks[:, None] * self.parts + parts).flatten()]
        return whole.reshape(len(blocks), -1)[:, self.index].view(len(blocks), *self.keys)
