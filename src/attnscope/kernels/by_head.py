"""The tile pass with its compiled inner loop, heads spread over threads; short texts have several heads in a tile."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from threading import Barrier
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels import plain
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, shows_scores
from attnscope.support.state import own_threads

if TYPE_CHECKING:
    from attnscope.kernels.compiled import CompiledRows

_LEAST = float(torch.finfo(torch.float32).min)
_FEW = 32  # up to this number of marked keys in a tile, picking them out is faster than a product with all keys


def tiles_by_head(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """The tile pass with its compiled inner loop: on the CPU, in float32 (half types are widened)."""
    # numba is loaded when it is first needed
    from attnscope.kernels.compiled import MEASURES, CompiledRows

    sums, shape = plain.Sums.empty(call, need, torch.float32), call.query.shape[:-1]
    columns = sums.output.new_zeros(*shape, 0) if sums.columns is None else sums.columns
    measures = torch.empty(len(MEASURES), *shape, dtype=torch.float64)
    weighted = torch.empty(columns.shape, dtype=torch.float64)
    output, added, into = map(_of_rows, (sums.output, columns, weighted))
    state = tuple(map(_of_rows, sums.state.parts()))
    rows = CompiledRows(state, output, added, tuple(measures.flatten(1).numpy()), into, need.bins)
    parts, least = _parts(call, need, sums), _LEAST if shows_scores(call) else -math.inf
    _in_threads(range(len(parts)), lambda number: _attend(parts[number], rows, call, least))
    state = sums.state
    return sums.output.to(call.query.dtype), RowMeasures(
        **dict(zip(MEASURES, measures.unbind(), strict=True)),
        largest_key=state.largest_key[..., 0].double() if state.largest_key.shape[-1] else None,
        band=state.band if state.band.shape[-1] else None,
        bins=state.bins if state.bins.shape[-1] else None,
        columns=None if sums.columns is None else weighted,
    )


def _of_rows(tensor: Tensor) -> np.ndarray:
    """The same memory, ``(row, ...)``."""
    return tensor.flatten(0, 2).numpy()


@dataclass(frozen=True, eq=False)
class _Part:
    """One head of one text, or several adjacent ones, in blocks of queries and tiles of keys."""

    top: int  # the first of its rows among those of all heads
    # parts of each block: queries, ``(..., query, width)``; sums of values and of columns; the keys that queries
    # may attend to, with the rows of all heads one after the other
    query: Sequence[Tensor]
    output: Sequence[Tensor]
    column_sums: Sequence[Tensor]
    bounds: Sequence[_Bounds]
    # parts of each tile: keys, ``(..., width, key)``; values; columns ``(key, column)`` and which keys have any
    key: Sequence[Tensor]
    value: Sequence[Tensor]
    shared: list[int] | None  # which of these heads of keys each head of the part reads; None where each reads its own
    columns: Sequence[Tensor]
    marked: Sequence[Tensor | None]
    mask: Tensor | None  # mask and bias of the part, ``(..., query, key)``
    bias: Tensor | None
    sinks: np.ndarray | None  # learned sinks of its heads


def _parts(call: AttentionCall, need: Need, sums: plain.Sums) -> list[_Part]:
    """All heads of all texts."""
    tiles, (texts, count, queries) = heads_of_tiles(call), call.query.shape[:-1]
    blocks = [slice(first, first + plain.QUERY_TILE) for first in range(0, queries, plain.QUERY_TILE)]
    query, output = (side.split(plain.QUERY_TILE, -2) for side in (call.query, sums.output))
    column_sums = () if sums.columns is None else sums.columns.split(plain.QUERY_TILE, -2)
    key, value = call.key.transpose(-2, -1).split(plain.KEY_TILE, -1), call.value.split(plain.KEY_TILE, -2)
    sinks = None if call.sinks is None else call.sinks.detach().double().numpy()
    made: list[_Part] = []
    for text in range(texts):
        columns = call.query.new_empty(0, 0) if need.columns is None else need.columns[text].float()
        of_tiles = columns.split(plain.KEY_TILE)
        chosen = [tile.nonzero()[:, 0] for tile in (columns != 0).any(-1).split(plain.KEY_TILE)]
        marked = [at if len(at) <= _FEW else None for at in chosen]  # keys with a column that is not 0, where few
        start, stop, own = (each[min(text, len(each) - 1)].numpy() for each in (*call.extent, call.query_positions))
        bounds_of: dict[int, list[_Bounds]] = {}
        for heads in tiles:
            first, size = (heads, 1) if isinstance(heads, int) else (heads.start, heads.stop - heads.start)
            if size not in bounds_of:  # the number of heads whose rows follow each other
                bounds_of[size] = [
                    _Bounds(
                        (np.tile(start[block], size), np.tile(stop[block], size), np.tile(own[block], size)),
                        int(start[block].min()),
                        int(stop[block].max()),
                    )
                    for block in blocks
                ]
            key_heads, shared = _key_heads(call.group, heads)
            made.append(
                _Part(
                    top=(text * count + first) * queries,
                    query=[block[text, heads] for block in query],
                    output=[block[text, heads] for block in output],
                    column_sums=[block[text, heads] for block in column_sums],
                    bounds=bounds_of[size],
                    key=[tile[text, key_heads] for tile in key],
                    value=[tile[text, key_heads] for tile in value],
                    shared=shared,
                    columns=of_tiles,
                    marked=marked,
                    mask=None if call.is_contiguous else _own(call.mask, text, heads),
                    bias=_own(call.bias, text, heads),
                    sinks=None if sinks is None else sinks[first : first + size],
                )
            )
    return made


@dataclass(frozen=True, eq=False)
class _Bounds:
    """First key, end and own position of the rows of a block; and the extremes of the first two."""

    of_rows: tuple[np.ndarray, np.ndarray, np.ndarray]
    first: int
    last: int


def _attend(part: _Part, into: CompiledRows, call: AttentionCall, least: float) -> None:
    """Attend for one part, tile by tile: fill its empty sums and finish them."""
    key, value = (_single(side, part.shared) for side in (part.key, part.value))
    top = part.top
    for block, given in enumerate(part.query):
        query = given.float() * call.scale
        bounds = part.bounds[block]
        rows = slice(block * plain.QUERY_TILE, block * plain.QUERY_TILE + query.shape[-2])
        leftmost = bounds.first // plain.KEY_TILE
        for tile in range(leftmost, -(-bounds.last // plain.KEY_TILE)):
            # memory that each thread reuses: allocating it takes a tenth of the time of a tile
            shape = (*query.shape[:-1], key[tile].shape[-1])
            if not hasattr(_OWN, "scores"):
                _OWN.scores, _OWN.shaped = torch.empty(plain.QUERY_TILE * plain.KEY_TILE, dtype=torch.float32), {}
            if shape not in _OWN.shaped:
                _OWN.shaped = {shape: _OWN.scores[: math.prod(shape)].view(shape)}
            scores = _OWN.shaped[shape]
            torch.matmul(query, key[tile], out=scores)
            keys = slice(tile * plain.KEY_TILE, tile * plain.KEY_TILE + scores.shape[-1])
            plain.adjust(scores, call.softcap, part.bias, part.mask, rows, keys)
            factor = into.absorb(scores, bounds.of_rows, top, keys.start, least)
            rescale = None if tile == leftmost else factor.view(*scores.shape[:-1], 1)
            plain.add_weighted(part.output[block], rescale, scores, value[tile])
            if part.column_sums:
                weights, columns, at = scores, part.columns[tile], part.marked[tile]
                if at is not None:  # first and special tokens: most tiles have none
                    weights, columns = scores[..., at], columns[at]
                plain.add_weighted(part.column_sums[block], rescale, weights, columns)
        into.finish(bounds.of_rows, top, part.sinks)
        top += len(bounds.of_rows[0])


def _single(tiles: Sequence[Tensor], shared: list[int] | None) -> Sequence[Tensor]:
    """Keys or values of a part in float32."""
    if shared is not None:
        tiles = [tile[shared] for tile in tiles]
    return tiles if tiles[0].dtype == torch.float32 else [tile.float() for tile in tiles]


def heads_of_tiles(call: AttentionCall) -> list[int] | list[slice]:
    """The heads of each tile: several for short texts, where the overhead of a tile exceeds its scores."""
    count, queries, keys = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    together = plain.QUERY_TILE * plain.KEY_TILE // max(1, queries * keys)
    if queries > plain.QUERY_TILE or keys > plain.KEY_TILE or 1 in {together, count}:
        return list(range(count))
    starts = range(0, count, together)
    return list(map(slice, starts, (*starts[1:], count)))


_OWN = threading.local()


def operands_of_head(call: AttentionCall, text: int, head: int) -> plain.Operands:
    """Operands of one head of one text, in float32."""
    start, stop, positions = (each[min(text, len(each) - 1)] for each in (*call.extent, call.query_positions))
    query = call.query[text, head].float() * call.scale
    key, value = (side[text, head // call.group].float() for side in (call.key, call.value))
    mask, bias = None if call.is_contiguous else _own(call.mask, text, head), _own(call.bias, text, head)
    return plain.Operands(query, key, value, start, stop, positions, None, mask, bias, call.softcap, ())


def _key_heads(group: int, heads: int | slice) -> tuple[int | slice, list[int] | None]:
    """The key heads that these heads read, and, where a group shares one, which of those each head reads."""
    if isinstance(heads, int):
        return heads // group, None
    if group == 1:
        return heads, None
    first = heads.start // group
    read = [head // group - first for head in range(heads.start, heads.stop)]
    return slice(first, first + read[-1] + 1), read


def _own(tensor: Tensor | None, text: int, heads: int | slice) -> Tensor | None:
    """The part of a mask or bias that may be shared by texts or heads."""
    if tensor is None:
        return None
    of_text = tensor[min(text, len(tensor) - 1)]
    return of_text[0 if len(of_text) == 1 else heads]


def each_tile(
    call: AttentionCall, log_sum_exp: Tensor, into: Sequence[Tensor], add: Callable[..., None], size: int = 1
) -> None:
    """Recompute the weights tile by tile: ``add(weights, rows, keys, *into)`` gets the part of their heads of `into`.

    Rows with an infinite log-sum-exp are left out. Tiles consist of whole blocks of `size` tokens, or of part of one.
    """
    wide = torch.promote_types(call.query.dtype, torch.float32)
    level = log_sum_exp.to(wide)
    # what float32 cannot hold of a log-sum-exp is a factor of its row
    factor = torch.where(level < torch.inf, torch.exp(level - log_sum_exp), 0.0).to(wide)
    if call.query.device.type != "cpu" or wide == torch.float64:
        level, factor, *into = (plain.by_group(call, each) for each in (level, factor, *into))
        _add_tiles(plain.batched_operands(call, wide), level, factor, into, add, plain.rows_at_once(call), size)
        return

    def work(operands: plain.Operands, *at: int) -> None:
        _add_tiles(operands, level[at], factor[at], [part[at] for part in into], add, plain.QUERY_TILE, size)

    each_head(call, work)


def _add_tiles(
    operands: plain.Operands,
    level: Tensor,
    factor: Tensor,
    into: Sequence[Tensor],
    add: Callable[..., None],
    most: int,
    size: int,
) -> None:
    """Tiles that are masked entirely, and single rows at either end that do not count, are skipped."""
    counted = (level < torch.inf).reshape(-1, level.shape[-1])
    for rows in _cuts(level.shape[-1], size, most):
        if not len(at := counted[:, rows].any(0).nonzero()):
            continue
        if size == 1:
            rows = slice(rows.start + int(at[0]), rows.start + int(at[-1]) + 1)  # noqa: PLW2901
        start, stop = operands.start[..., rows, None].int(), operands.stop[..., rows, None].int()
        first, last, is_whole = int(start.min()), int(stop.max()), bool(counted[:, rows].all())
        inner = int(start.max()), int(stop.min())
        scores: Tensor | None = None
        for keys in _cuts(operands.key.shape[-2], size, plain.KEY_TILE):
            if keys.start >= last or keys.stop <= first:
                continue
            if size == 1:
                keys = slice(max(keys.start, first), min(keys.stop, last))  # noqa: PLW2901
            if scores is not None and scores.shape[-1] != keys.stop - keys.start:
                scores = None
            scores = operands.scores(rows, keys, scores)
            weights = scores.sub_(level[..., rows, None]).exp_().mul_(factor[..., rows, None])
            index = torch.arange(keys.start, keys.stop, dtype=start.dtype, device=weights.device)
            if keys.start < inner[0]:
                weights.masked_fill_(index < start, 0.0)
            if keys.stop > inner[1]:
                weights.masked_fill_(index >= stop, 0.0)
            if not is_whole:
                weights.masked_fill_(level[..., rows, None] == torch.inf, 0.0)
            add(weights, rows, keys, *into)


def _cuts(length: int, size: int, most: int) -> Iterator[slice]:
    """Pieces of at most `most` tokens, each of whole blocks or part of one block."""
    step = size if size > most else most - most % size
    for first in range(0, length, step):
        last = min(first + step, length)
        for start in range(first, last, most):
            yield slice(start, min(start + most, last))


def each_head(call: AttentionCall, work: Callable[[plain.Operands, int, int], None]) -> None:
    """Process the heads of every text with as many threads as PyTorch uses."""
    texts, heads = call.query.shape[:2]
    places = [divmod(number, heads) for number in range(texts * heads)]
    _in_threads(range(len(places)), lambda number: work(operands_of_head(call, *places[number]), *places[number]))


def _in_threads(numbers: range, work: Callable[[int], None]) -> None:
    def in_thread(number: int) -> None:
        with torch.inference_mode():
            work(number)

    if (pool := _threads(torch.get_num_threads())) is None:
        for number in numbers:
            in_thread(number)
        return
    with own_threads(1):  # MKL has one setting for all threads: each would split its products once more
        for _ in pool.map(in_thread, numbers):
            pass


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor | None:
    """Workers with one PyTorch thread each; None if there is only one thread."""
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
