"""The tile pass with its compiled inner loop, heads spread over threads; short texts have several heads in a tile."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import isbuiltin
from threading import Barrier
from typing import TYPE_CHECKING, TypeVar

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
    # numba compiles one signature: absent columns are an array of width 0
    columns = sums.output.new_zeros(*shape, 0) if sums.columns is None else sums.columns
    measures = torch.empty(len(MEASURES), *shape, dtype=torch.float64)
    weighted = torch.empty(columns.shape, dtype=torch.float64)
    # the same memory, ``(row, ...)``
    output, added, into, *state = [
        each.flatten(0, 2).numpy() for each in (sums.output, columns, weighted, *sums.state.parts())
    ]
    rows = CompiledRows(tuple(state), output, added, tuple(measures.flatten(1).numpy()), into, need.bins)
    marks = None if need.columns is None else _Marks.of(need.columns)
    # without mask, bias and cap a score of -inf can only come from overflow
    least = _LEAST if shows_scores(call) else -math.inf
    _in_threads(heads_of_tiles(call), partial(_attend, call=call, sums=sums, marks=marks, into=rows, least=least))
    state = sums.state
    return sums.output.to(call.query.dtype), RowMeasures(
        **dict(zip(MEASURES, measures.unbind(), strict=True)),
        largest_key=state.largest_key[..., 0].double() if state.largest_key.shape[-1] else None,
        band=state.band if state.band.shape[-1] else None,
        bins=state.bins if state.bins.shape[-1] else None,
        columns=None if sums.columns is None else weighted,
    )


@dataclass(frozen=True, eq=False)
class HeadsOfTile:
    """Heads whose scores share a tile: one head; several adjacent ones of a short text; or all of several texts."""

    texts: slice
    heads: slice
    is_alone: bool  # whether it is one head, whose operands are matrices; of several, they are stacked

    def of(self, side: Tensor) -> Tensor:
        """Queries or sums of these heads, from those of all; of sums, a view."""
        part = side[self.texts, self.heads]
        return part[0, 0] if self.is_alone else part.flatten(0, 1)

    def of_keys(self, side: Tensor, group: int) -> Tensor:
        """Keys or values that these heads read, in float32."""
        first = self.heads.start // group
        part = side[self.texts, first : -(-self.heads.stop // group)]
        if self.is_alone:
            return part[0, 0].float()
        if group > 1:
            part = part[:, torch.arange(self.heads.start, self.heads.stop) // group - first]
        return part.flatten(0, 1).float()

    def of_pairs(self, pairs: Tensor | None) -> Tensor | None:
        """Their part of a mask or bias that may be shared by texts or heads: ``([text, head,] query, key)``."""
        if pairs is None:
            return None
        texts = self.texts if len(pairs) > 1 else slice(None)
        heads = self.heads if pairs.shape[1] > 1 else slice(None)
        part = pairs[texts, heads]
        return part[0, 0] if self.is_alone else part

    def bounds(self, call: AttentionCall, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First key, end and own position of some queries of all these heads, one head after the other."""
        texts, count = len(call.query), self.heads.stop - self.heads.start
        each = [
            bound.expand(texts, -1).numpy()[self.texts, None, rows] for bound in (*call.extent, call.query_positions)
        ]
        start, stop, diagonal = np.repeat(each, count, 2).reshape(3, -1)
        return start, stop, diagonal


def heads_of_tiles(call: AttentionCall) -> list[HeadsOfTile]:
    """The heads of each tile: several for short texts, where the overhead of a tile exceeds its scores."""
    texts, count, queries, keys = *call.query.shape[:3], call.key.shape[2]
    together = plain.QUERY_TILE * plain.KEY_TILE // max(1, queries * keys)
    is_alone = queries > plain.QUERY_TILE or keys > plain.KEY_TILE or 1 in {together, count}
    heads = 1 if is_alone else min(together, count)
    # texts that leave a tile to each thread
    several = 1 if is_alone else max(1, min(together // count, -(-texts // torch.get_num_threads())))
    return [
        HeadsOfTile(slice(text, min(text + several, texts)), slice(first, min(first + heads, count)), is_alone)
        for text in range(0, texts, several)
        for first in range(0, count, heads)
    ]


@dataclass(frozen=True, eq=False)
class _Marks:
    """Value columns of each text, in tiles of keys; and the keys that have one, where these are few."""

    columns: list[Sequence[Tensor]]  # of each text and tile: ``(key, column)``
    at: list[list[Tensor | None]]  # of each text and tile: indices of keys in the tile; None where many

    @classmethod
    def of(cls, columns: Tensor) -> _Marks:
        marks = cls([], [])
        for text, is_marked in zip(columns.float(), (columns != 0).any(-1), strict=True):
            marks.columns.append(text.split(plain.KEY_TILE))
            marks.at.append([])
            for tile in is_marked.split(plain.KEY_TILE):
                at = tile.nonzero()[:, 0]
                marks.at[-1].append(at if len(at) <= _FEW else None)
        return marks


def _attend(
    tile: HeadsOfTile, call: AttentionCall, sums: plain.Sums, marks: _Marks | None, into: CompiledRows, least: float
) -> None:
    """Attend for the heads of a tile, in blocks of queries and tiles of keys: fill their empty sums and finish them."""
    count, queries = call.query.shape[1:3]
    query, output = tile.of(call.query), tile.of(sums.output)
    key, value = tile.of_keys(call.key, call.group), tile.of_keys(call.value, call.group)
    mask, bias = None if call.is_contiguous else tile.of_pairs(call.mask), tile.of_pairs(call.bias)
    sinks = None
    if call.sinks is not None:
        of_heads = call.sinks.detach().double().numpy()[tile.heads]
        sinks = np.tile(of_heads, tile.texts.stop - tile.texts.start)
    top = (tile.texts.start * count + tile.heads.start) * queries  # the first of their rows among those of all heads
    for first in range(0, queries, plain.QUERY_TILE):
        rows = slice(first, min(first + plain.QUERY_TILE, queries))
        # scaled before the product: queries are fewer numbers than scores
        of_block = query[..., rows, :].float() * call.scale
        bounds = start, stop, _ = tile.bounds(call, rows)
        leftmost = int(start.min()) // plain.KEY_TILE
        for number in range(leftmost, -(-int(stop.max()) // plain.KEY_TILE)):
            keys = slice(number * plain.KEY_TILE, min((number + 1) * plain.KEY_TILE, key.shape[-2]))
            scores = _reused((*of_block.shape[:-1], keys.stop - keys.start))
            torch.matmul(of_block, key[..., keys, :].transpose(-2, -1), out=scores)
            # mask and bias differ by text, where a tile has the heads of several
            by_text = scores if tile.is_alone else scores.unflatten(0, (-1, tile.heads.stop - tile.heads.start))
            plain.adjust(by_text, call.softcap, bias, mask, rows, keys)
            factor = into.absorb(scores, bounds, top, keys.start, least)
            rescale = None if number == leftmost else factor.view(*scores.shape[:-1], 1)
            plain.add_weighted(output[..., rows, :], rescale, scores, value[..., keys, :])
            if marks is None or sums.columns is None:
                continue
            for text in range(tile.texts.start, tile.texts.stop):
                columns, at = marks.columns[text][number], marks.at[text][number]
                total = sums.columns[text, tile.heads, rows]
                total, weights = (total[0], scores) if tile.is_alone else (total, by_text[text - tile.texts.start])
                if at is not None:  # first and special tokens: most tiles have none
                    weights, columns = weights[..., at], columns[at]
                plain.add_weighted(total, rescale, weights, columns)
        into.finish(bounds, top, sinks)
        top += len(start)


def _reused(shape: tuple[int, ...]) -> Tensor:
    """Memory of a tile that each thread reuses: allocating it takes a tenth of the time of a tile."""
    if not hasattr(_OWN, "scores"):
        _OWN.scores = torch.empty(plain.QUERY_TILE * plain.KEY_TILE, dtype=torch.float32)
    return _OWN.scores[: math.prod(shape)].view(shape)


_OWN = threading.local()


def operands_of_head(call: AttentionCall, text: int, head: int) -> plain.Operands:
    """Operands of one head of one text, in float32."""
    start, stop, positions = (each[min(text, len(each) - 1)] for each in (*call.extent, call.query_positions))
    tile = HeadsOfTile(slice(text, text + 1), slice(head, head + 1), is_alone=True)
    query, key, value = tile.of(call.query), *(tile.of_keys(side, call.group) for side in (call.key, call.value))
    query = query.float() * call.scale
    mask, bias = None if call.is_contiguous else tile.of_pairs(call.mask), tile.of_pairs(call.bias)
    return plain.Operands(query, key, value, start, stop, positions, None, mask, bias, call.softcap, ())


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
    # threads by head pay on the CPU alone, and their tiles are float32
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
        at = counted[:, rows].any(0).nonzero()
        if not len(at):
            continue
        if size == 1:
            rows = slice(rows.start + int(at[0]), rows.start + int(at[-1]) + 1)  # noqa: PLW2901
        start, stop = operands.start[..., rows, None].int(), operands.stop[..., rows, None].int()
        first, last, is_whole = int(start.min()), int(stop.max()), bool(counted[:, rows].all())
        # keys that all rows see, where no mask has to be written
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
    places = itertools.product(range(texts), range(heads))
    _in_threads(places, lambda place: work(operands_of_head(call, *place), *place))


T = TypeVar("T")


def _in_threads(parts: Iterable[T], work: Callable[[T], None]) -> None:
    # the mode belongs to a thread: those of the pool do not inherit it
    work = torch.inference_mode()(work)
    pool = _threads(torch.get_num_threads())
    if pool is None:
        for part in parts:
            work(part)
        return
    with own_threads(1):  # MKL has one setting for all threads: each would split its products once more
        for _ in pool.map(work, parts):
            pass


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor | None:
    """Workers with one PyTorch thread each; None if there is only one thread."""
    # an engine that binds its threads to cores has put a function that does nothing in place of the setting
    if count == 1 or not isbuiltin(torch.set_num_threads):
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
