"""The compiled inner loop of the tile pass: each score is read once while it is in the cache.

Reductions are written as plain loops that LLVM turns into vector code; that needs three things which
NumPy semantics would forbid: sums may be reordered, NaN may be ignored (but by `_row_maximum`, which looks for it),
and exp is a polynomial.

The loop of `band_compiled` is here too: Numba reuses compiled code until the file of its function changes.
"""

# pyright: basic, reportCallIssue=false
# ruff: noqa: ANN001, ANN202

import math
from dataclasses import dataclass

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from attnscope.kernels.bins import segments

_F = np.float32
Bounds = tuple[np.ndarray, np.ndarray, np.ndarray]
_OPTIONS = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"nnan", "nsz", "arcp", "contract", "reassoc"},  # infinities keep their meaning
}


@intrinsic
def _maximum(_context, _a, _b):
    """Maximum of two floats as one LLVM instruction, so that a loop over it becomes vector code."""

    def generate(_target, builder, _signature, arguments):
        single = ir.FloatType()
        function = builder.module.declare_intrinsic("llvm.maxnum", [single], ir.FunctionType(single, [single, single]))
        return builder.call(function, arguments, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), generate


@intrinsic
def _power_of_two(_context, _n):
    """2 to the power of a whole number -126..127 in a float: the number becomes the exponent's bits."""

    def generate(_target, builder, _signature, arguments):
        word = ir.IntType(32)
        whole = builder.fptosi(arguments[0], word)
        bits = builder.shl(builder.add(whole, ir.Constant(word, 127)), ir.Constant(word, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.float32), generate


@njit(inline="always", **_OPTIONS)
def _exp(x):
    """Exp for -87 <= x <= 0: the number of halvings, then exp of the rest by its Taylor series."""
    halvings = np.floor(x * _F(1 / math.log(2)) + _F(0.5))
    # ln 2 in two parts (Cody and Waite 1980): the first has few bits, so that its product is exact
    rest = x - halvings * _F(0.693359375)
    rest = rest - halvings * _F(math.log(2) - 0.693359375)
    # |rest| <= ln(2) / 2: the next term of the series is below float32's rounding
    series = _F(1 / 5040)
    series = series * rest + _F(1 / 720)
    series = series * rest + _F(1 / 120)
    series = series * rest + _F(1 / 24)
    series = series * rest + _F(1 / 6)
    series = series * rest + _F(1 / 2)
    series = series * rest + _F(1)
    series = series * rest + _F(1)
    return series * _power_of_two(halvings)


@njit(**_OPTIONS | {"fastmath": _OPTIONS["fastmath"] - {"nnan"}})
def _row_maximum(row, least):
    """Largest score; infinity where one is NaN or less than the least."""
    largest = _F(-np.inf)
    strange = False
    for j in range(row.shape[0]):
        largest = _maximum(largest, row[j])
        strange |= not row[j] >= least  # nor is NaN
    return _F(np.inf) if strange else largest


@njit(**_OPTIONS)
def _first_with(row, largest, index):
    """Index of the first largest score; comparing all of them is vector code, a search is not."""
    first = _F(-np.inf)
    for j in range(row.shape[0]):
        # the least index is the largest negative one: LLVM makes a vector of a maximum
        first = _maximum(first, -index[j] if row[j] == largest else _F(-np.inf))
    return -first


@njit(**_OPTIONS)
def _row_sums(row, maximum, index):
    """Replace scores by p = exp(score - maximum); return Σp, Σp·(score - maximum), Σp², Σp·j."""
    total = _F(0)
    score = _F(0)
    square = _F(0)
    first = _F(0)
    for j in range(row.shape[0]):
        distance = row[j] - maximum
        below = _maximum(distance, _F(-87))
        p = _exp(below) if distance > _F(-87) else _F(0)  # a masked score leaves exactly 0
        row[j] = p
        total += p
        score += p * below
        square += p * p
        first += p * index[j]
    return total, score, square, first


@njit(**_OPTIONS)
def _row_spread(row, mean, index):
    spread = _F(0)
    for j in range(row.shape[0]):
        away = index[j] - mean
        spread += row[j] * away * away
    return spread


@njit(**_OPTIONS)
def _sum(row):
    total = _F(0)
    for j in range(row.shape[0]):
        total += row[j]
    return total


@njit(**_OPTIONS)
def _add_bins(row, first, last, p, zero, edges, into):
    """Add a row's p to the bins of its offsets; `zero` is the column of the query itself. The middle is not a bin."""
    middle = into.shape[0] // 2
    for segment in range(2 * middle + 1):
        low, high = max(first, edges[segment] + zero), min(last, edges[segment + 1] + zero)
        if high <= low or segment == middle:
            continue
        whole = low == first and high == last  # then its sum is known
        into[segment - (segment > middle)] += p if whole else _sum(row[low:high])


@njit(**_OPTIONS)
def _row_exp(row, level):
    """Replace scores by weights, exp(score - level)."""
    for j in range(row.shape[0]):
        distance = row[j] - level
        row[j] = _exp(_maximum(distance, _F(-87))) if distance > _F(-87) else _F(0)


@njit(**_OPTIONS)
def _absorb(scores, bounds, column, index, top, state, edges, factor, least):
    start, stop, diagonal = bounds
    maximum, total, score, square, mean, spread, largest_key, band, bins = state
    queries, keys = scores.shape
    reach = band.shape[1] // 2
    for i in range(queries):
        at_row = top + i
        first = min(max(start[i] - column, 0), keys)
        last = max(min(stop[i] - column, keys), first)
        row = scores[i, first:last]
        old = maximum[at_row]
        # online softmax (Milakov and Gimelshein 2018): a new maximum rescales what was added before
        new = max(old, _row_maximum(row, least))
        if abs(new) == np.inf:  # no key yet; or infinity, after which there are no weights
            scores[i, :] = _F(0)
            factor[i] = _F(1)
            maximum[at_row] = new
            continue
        if largest_key.shape[1] and new > old:
            largest_key[at_row, 0] = column + np.int64(_first_with(row, new, index[first:last]))
        if band.shape[1]:
            at = diagonal[i] - reach - column  # column of the first offset, in this tile
            for t in range(max(0, first - at), min(band.shape[1], last - at)):
                band[at_row, t] = scores[i, at + t]
        p, p_score, p_square, p_index = _row_sums(row, new, index[first:last])
        # the product with the values reads whole rows: masked keys must have the weight 0 there
        scores[i, :first] = _F(0)
        scores[i, last:] = _F(0)
        local = p_index / p if p > 0 else _F(0)
        local_spread = _row_spread(row, local, index[first:last])
        rescale = math.exp(np.float64(old) - np.float64(new))
        factor[i] = rescale
        if bins.shape[1]:
            bins[at_row] *= _F(rescale)
            _add_bins(scores[i], first, last, p, diagonal[i] - column, edges, bins[at_row])
        before = total[at_row] * rescale
        if before > 0:
            # sum of p (s - maximum), for the entropy: each term moves by old - new, then shrinks as its p does
            score[at_row] = rescale * (score[at_row] + (np.float64(old) - np.float64(new)) * total[at_row])
        score[at_row] += p_score
        square[at_row] = square[at_row] * rescale * rescale + p_square
        total[at_row] = before + p
        # two groups as one (Chan et al. 1979): their spreads add up, and the means' distance weighs before * p / total
        jump = np.float64(local) + column - mean[at_row]
        share = p / total[at_row]
        spread[at_row] = spread[at_row] * rescale + local_spread + jump * jump * before * share
        mean[at_row] += jump * share
        maximum[at_row] = new


@njit(nogil=True, cache=True, error_model="numpy")  # without fastmath: rows that are NaN stay so
def _finish(bounds, top, sinks, state, output, columns, measures, weighted):
    start, stop, diagonal = bounds
    maximum, total, score, square, mean, spread, _, band, bins = state
    log_sum_exp, mass, entropy, mean_offset, variance, largest, collision = measures
    for i in range(len(start)):
        at = top + i
        is_seen = maximum[at] != -np.inf
        whole = total[at] if is_seen else 1.0
        log_whole = np.log(whole)
        level = np.float64(maximum[at]) + log_whole
        if sinks.shape[0]:
            # rows of adjacent heads are together: as many rows for each sink
            level = np.logaddexp(level, sinks[i * sinks.shape[0] // len(start)])
            mass[at] = np.exp(np.float64(maximum[at]) + log_whole - level) if is_seen else 0.0
        else:
            mass[at] = level - level + 1.0 if is_seen else 0.0  # NaN unless the level is finite
        log_sum_exp[at] = level
        share = mass[at] / whole
        most = np.log(max(stop[i] - start[i], 1))  # of the allowed keys
        entropy[at] = mass[at] * min(max(log_whole - score[at] / whole, 0.0), most)
        if sinks.shape[0] and mass[at] > 0:
            entropy[at] -= mass[at] * np.log(mass[at])
        mean_offset[at] = mean[at] - diagonal[i] if is_seen else 0.0
        variance[at] = spread[at] / whole
        largest[at] = share
        collision[at] = square[at] * share**2
        for column in range(weighted.shape[1]):
            weighted[at, column] = columns[at, column] * share
        single = _F(share)
        for column in range(output.shape[1]):
            output[at, column] *= single
        for place in range(bins.shape[1]):
            bins[at, place] *= single
        if not is_seen:
            band[at] = _F(0)
        elif not np.isfinite(level):
            band[at] = _F(np.nan)
        else:
            _row_exp(band[at], _F(level))


_INDEX = np.arange(4096, dtype=np.float32)
_NO_SINKS = np.zeros(0)
# of `RowMeasures`, in the order in which `_finish` fills them
MEASURES = ("log_sum_exp", "mass", "entropy", "mean_offset", "offset_variance", "largest", "collision")


@dataclass(frozen=True, eq=False)
class CompiledRows:
    """Running sums of all rows of a call in the compiled pass; the rows of a head are adjacent."""

    state: tuple[np.ndarray, ...]  # fields of `TileState` in their order, each of all rows
    output: np.ndarray  # sums of values and of columns, ``(row, ...)``
    columns: np.ndarray
    measures: tuple[np.ndarray, ...]  # to be filled by `finish`, ``(row,)`` each, float64: `MEASURES`
    weighted: np.ndarray  # to be filled by `finish`, ``(row, column)``, float64
    bins: tuple[int, ...]  # as in `Need`

    def absorb(self, scores: Tensor, bounds: Bounds, top: int, column: int, least: float) -> Tensor:
        """Absorb a tile, ``(query, key)``, of one head or of several with adjacent rows."""
        factor = np.empty(len(bounds[0]), _F)
        rows = scores.numpy().reshape(-1, scores.shape[-1])
        _absorb(rows, bounds, column, _INDEX, top, self.state, segments(self.bins), factor, _F(least))
        return torch.from_numpy(factor)

    def finish(self, bounds: Bounds, top: int, sinks: np.ndarray | None) -> None:
        """Turn the sums of some rows into weights, as `Sums.finish` does; `sinks` belong to their heads."""
        sinks = _NO_SINKS if sinks is None else sinks
        _finish(bounds, top, sinks, self.state, self.output, self.columns, self.measures, self.weighted)


@njit(**_OPTIONS)
def _band(query, key, start, stop, level, band):
    reach = band.shape[1] // 2
    for i in range(query.shape[0]):
        if level[i] == np.inf:
            continue
        for j in range(max(start[i], i - reach), min(stop[i], i + reach + 1)):
            score = _F(0)
            for column in range(query.shape[1]):
                score += query[i, column] * key[j, column]
            band[i, j - i + reach] = math.exp(score - level[i])


def band_compiled(query: Tensor, key: Tensor, start: Tensor, stop: Tensor, level: Tensor, band: Tensor) -> None:
    """Fill `band`, ``(query, offset)``, with the weights of one head at these offsets; `query` is scaled."""
    _band(*(tensor.numpy() for tensor in (query, key, start, stop, level, band)))
