"""The tile pass with its compiled inner loop, heads spread over threads; of short texts several heads make a tile."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from attnscope.attention._call import AttentionCall, Need, RowMeasures
from attnscope.attention._finite import told
from attnscope.attention._tiles import KEY_TILE, QUERY_TILE, Operands, Sums, marked_keys, sweep

Heads = TypeVar("Heads")


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
    queries = call.query.shape[2]
    sums = Sums.empty(call, need, torch.float32)
    marked = None if need.columns is None else [marked_keys(columns) for columns in need.columns]

    def work(text: int, heads: int | slice) -> None:
        operands = _operands(call, text, heads, need)
        if marked is not None:
            operands = replace(operands, marked=marked[text])
        part = sums.view(lambda tensor: tensor[text, heads])
        lent = _scores_of_a_tile(operands)
        for first in range(0, queries, QUERY_TILE):
            sweep(operands, range(first, min(first + QUERY_TILE, queries)), take, part, lent)

    _in_threads([(text, heads) for text in range(len(call.query)) for heads in heads_of_tiles(call)], work)
    return sums.finish(call)


def heads_of_tiles(call: AttentionCall) -> list[int] | list[slice]:
    """The heads of each tile: of short texts several, as what a tile costs beside its scores is more than these.

    That depends on the sizes of a head alone, not on threads or batch, so that results do not either.
    """
    count, queries, keys = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    together = QUERY_TILE * KEY_TILE // max(1, queries * keys)
    if queries > QUERY_TILE or keys > KEY_TILE or together == 1:
        return list(range(count))
    return [slice(first, min(first + together, count)) for first in range(0, count, together)]


_OWN = threading.local()


def _scores_of_a_tile(operands: Operands) -> Tensor:
    """Memory that each thread keeps: to ask for it takes as long as a tenth of the tile, page by page."""
    if not hasattr(_OWN, "scores"):
        _OWN.scores = torch.empty(QUERY_TILE * KEY_TILE)
    *heads, queries, _ = operands.query.shape
    shape = (*heads, min(queries, QUERY_TILE), min(operands.key.shape[-2], KEY_TILE))
    return _OWN.scores[: math.prod(shape)].view(shape)


def operands_of_head(call: AttentionCall, text: int, head: int) -> Operands:
    """Those of one head of one text, in float32."""
    return _operands(call, text, head, None)


def _operands(call: AttentionCall, text: int, heads: int | slice, need: Need | None) -> Operands:
    """Those of one head, or of some heads that follow each other."""

    def own(tensor: Tensor) -> Tensor:  # of a mask or bias that texts or heads may share
        of_text = tensor[min(text, len(tensor) - 1)]
        return of_text[0 if len(of_text) == 1 else heads]

    def of_keys(tensor: Tensor) -> Tensor:
        if call.group == 1:
            return tensor[text, heads].float()
        if isinstance(heads, int):
            return tensor[text, heads // call.group].float()
        shared = [head // call.group for head in range(heads.start, heads.stop)]
        return tensor[text, shared].float()

    start, stop, positions = (each[min(text, len(each) - 1)] for each in (*call.extent, call.query_positions))
    columns = None if need is None else need.columns
    return Operands(
        query=call.query[text, heads].float() * call.scale,
        key=of_keys(call.key),
        value=of_keys(call.value),
        start=start,
        stop=stop,
        positions=positions,
        columns=None if columns is None else columns[text].float(),
        mask=None if call.is_contiguous or call.mask is None else own(call.mask),
        bias=None if call.bias is None else own(call.bias),
        softcap=call.softcap,
        bins=() if need is None else need.bins,
    )


def each_head(call: AttentionCall, work: Callable[[int, int], None]) -> None:
    """Work through the heads of every text, over as many threads as PyTorch uses."""
    texts, heads = call.query.shape[:2]
    _in_threads([(text, head) for text in range(texts) for head in range(heads)], work)


def _in_threads(places: Sequence[tuple[int, Heads]], work: Callable[[int, Heads], None]) -> None:
    def in_thread(place: tuple[int, Heads]) -> None:
        with torch.inference_mode():
            work(*place)

    pool = _threads(torch.get_num_threads())
    for _ in map(in_thread, places) if pool is None else pool.map(in_thread, places):
        pass


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
