"""The tile pass with its compiled inner loop, heads spread over threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from threading import Barrier

import torch
from torch import Tensor

from attnscope.attention._call import AttentionCall, Need, RowMeasures
from attnscope.attention._finite import told
from attnscope.attention._tiles import QUERY_TILE, Operands, Sums, sweep


def compiled_tiles(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """The tile pass with its compiled inner loop: on the CPU, in float32 (half types are widened).

    Heads are spread over as many threads as PyTorch uses; each works through its tiles alone.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import plain_tiles
    >>> x = torch.randn(1, 2, 7, 4, generator=torch.Generator().manual_seed(0))
    >>> call = AttentionCall(x, x, x, scale=0.5)
    >>> bool(torch.allclose(compiled_tiles(call, Need())[0], plain_tiles(call, Need())[0], atol=1e-6))
    True
    """
    return told(_tiles_by_head, call, need, shows_scores=_shows_scores(call))


def _shows_scores(call: AttentionCall) -> bool:
    """Whether a score of -inf cannot be but a mistake: nothing else forbids a key, and no cap hides it."""
    return call.is_contiguous and call.bias is None and call.softcap is None


def _tiles_by_head(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    from attnscope.attention._compiled import absorb_compiled  # numba is loaded when it is first needed

    take = partial(absorb_compiled, shows_scores=_shows_scores(call))

    batch, heads, queries, _ = call.query.shape
    start, stop = (bound.expand(batch, -1) for bound in call.extent)
    sums = Sums.empty(call, need, torch.float32)
    mask = None if call.is_contiguous or call.mask is None else call.mask.expand(batch, heads, -1, -1)
    bias = None if call.bias is None else call.bias.expand(batch, heads, -1, -1)

    def one_head(place: tuple[int, int]) -> None:
        text, head = place
        with torch.inference_mode():
            operands = Operands(
                query=call.query[text, head].float() * call.scale,
                key=call.key[text, head // call.group].float(),
                value=call.value[text, head // call.group].float(),
                start=start[text],
                stop=stop[text],
                columns=None if need.columns is None else need.columns[text].float(),
                mask=None if mask is None else mask[text, head],
                bias=None if bias is None else bias[text, head],
                softcap=call.softcap,
                bins=need.bins,
            )
            part = sums.view(lambda tensor: tensor[text, head])
            for first in range(0, queries, QUERY_TILE):
                sweep(operands, range(first, min(first + QUERY_TILE, queries)), take, part)

    places = [(text, head) for text in range(batch) for head in range(heads)]
    pool = _threads(torch.get_num_threads())
    for _ in map(one_head, places) if pool is None else pool.map(one_head, places):
        pass
    return sums.finish(call)


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor | None:
    """Workers of one PyTorch thread each; None where one thread is all there is."""
    if count == 1:
        return None
    ready = Barrier(count + 1)

    def prepare() -> None:
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="attnscope")
    for _ in range(count):
        pool.submit(prepare)
    ready.wait()
    torch.set_num_threads(count)  # the setting is partly shared: put this thread's back
    return pool
