"""The kernel of measured attention: one program attends for a block of queries of one head and measures its rows.

Keys come in tiles, as in `plain`: each measure of a row is a running sum relative to its largest score so far. Scores
are in bits (times 1 / ln 2), because the processor has exp2. With a bias they are in nats, so that the most negative
number of a type stays finite. `docs/scale/gpu.md` has the formulas. Arguments that are not needed are None, and the
compiler leaves them out.
"""

# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from attnscope.kernels._triton_parts import (
    BITS,
    LEAST,
    NOTHING,
    NOWHERE,
    fallen,
    load_rows,
    padded,
    scored,
    with_bins,
    with_columns,
    with_key,
    with_moments,
)
from attnscope.kernels._triton_results import write_band, write_sums


@triton.jit
def _tile(
    state, query, key, value, columns, edges, mask, bias, bounds, row, column, factors, sizes,
    CHECKED: tl.constexpr, ENTROPY: tl.constexpr, COLLISION: tl.constexpr, OFFSETS: tl.constexpr,
    VARIANCE: tl.constexpr, KEYED: tl.constexpr, COLUMNS: tl.constexpr, SUMMED: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, KEY_TILE: tl.constexpr, BIN_TILE: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys from `column` on to the running sums; CHECKED where some rows cannot attend to all of them."""
    maximum, largest_key, total, score, square, moments, output, mark, second_mark, marked, bins_state = state
    first_row, queries, keys, bins = sizes
    IN_NATS: tl.constexpr = bias[0] is not None  # pyright: ignore[reportAssignmentType]
    at = column + tl.arange(0, KEY_TILE)
    k = load_rows(key[0], at, key[1], keys, CHECKED, width, UPCAST)
    products = tl.dot(query, tl.trans(k), input_precision=PRECISION)
    scores, seen = scored(products, row[:, None], at[None, :], bounds, mask, bias, factors, queries, keys, CHECKED)
    largest = tl.max(scores, 1)
    of_tile = largest
    if not IN_NATS:
        largest = largest * factors[0]
    if KEYED:
        largest_key = with_key(largest_key, maximum, largest, scores == of_tile[:, None], at)
    largest = tl.maximum(maximum, largest)
    shift = tl.where(largest == NOTHING, 0.0, largest)  # rows before their first allowed key
    below = fallen(scores, shift[:, None], factors[0], IN_NATS)
    p = tl.exp2(below)
    since = maximum - shift
    if IN_NATS:
        since *= BITS
    rescale = tl.exp2(since)
    part = tl.sum(p, 1)
    before = total * rescale
    if ENTROPY:
        # an allowed score of -inf gives 0 times -inf here: NaN, which the end of the kernel reports
        if CHECKED:
            below = tl.where(seen, below, 0.0)
        score = (score + tl.maximum(since, LEAST) * total) * rescale + tl.sum(p * below, 1)
    if COLLISION:
        square = square * rescale * rescale + tl.sum(p * p, 1)
    if OFFSETS:
        moments = with_moments(moments, before, rescale, part, p, column, VARIANCE, KEY_TILE)
    if edges is not None:
        bins_state = with_bins(
            bins_state, p, part, rescale, largest, at, row, column, first_row, edges, bins,
            IN_NATS, row.shape[0], KEY_TILE, BIN_TILE,
        )  # fmt: skip
    mark, second_mark, marked = with_columns(
        (mark, second_mark, marked), p, rescale, columns, at, keys, COLUMNS, SUMMED
    )
    v = load_rows(value[0], at, value[1], keys, CHECKED, value_width, UPCAST)
    output = tl.dot(p.to(v.dtype), v, output * rescale[:, None], input_precision=PRECISION)
    return (
        largest, largest_key, before + part, score, square, moments, output, mark, second_mark, marked, bins_state,
    )  # fmt: skip


@triton.jit
def visible_range(extent, text_bounds, row, is_row, keys, CAUSAL: tl.constexpr):
    """First key that each row attends to, and the end of its keys; an empty range where there is no row."""
    start, stop = extent
    if start is not None:
        low = tl.load(start + text_bounds + row, mask=is_row, other=0).to(tl.int32)
        high = tl.load(stop + text_bounds + row, mask=is_row, other=0).to(tl.int32)
    else:
        low = row * 0
        high = tl.where(is_row, tl.minimum(row + 1, keys) if CAUSAL else keys, 0)
    return low, high


@triton.jit
def tiles_of(low, high, is_row, keys, KEY_TILE: tl.constexpr, PLAIN: tl.constexpr):
    """First and end of the tiles that any row attends to, and, if PLAIN, of those that all rows attend to whole."""
    has_keys = high > low
    first = tl.min(tl.where(has_keys, low, keys)) // KEY_TILE
    last = tl.maximum(tl.cdiv(tl.max(tl.where(has_keys, high, 0)), KEY_TILE), first)
    whole = last
    whole_end = last
    if PLAIN:
        whole = tl.maximum(tl.minimum(tl.cdiv(tl.max(low), KEY_TILE), last), first)
        whole_end = tl.maximum(tl.min(tl.where(is_row, high, keys)) // KEY_TILE, whole)
    return first, last, whole, whole_end


@triton.jit
def empty_sums(
    row, value_width: tl.constexpr, COLUMNS: tl.constexpr, SUMMED: tl.constexpr, QUERY_TILE: tl.constexpr,
    BIN_TILE: tl.constexpr,
):  # fmt: skip
    """The running sums of rows before their first key."""
    zeros = tl.zeros((QUERY_TILE,), tl.float32)
    output = tl.zeros((QUERY_TILE, padded(value_width)), tl.float32)
    marked = tl.zeros((QUERY_TILE, padded(COLUMNS) if COLUMNS > SUMMED else 1), tl.float32)
    # no bin is open
    bins = (tl.zeros((QUERY_TILE, BIN_TILE), tl.float32), zeros + NOTHING, zeros, 0, NOWHERE + 0, 0)
    moments = (zeros, zeros, row * 0)
    return (
        zeros + NOTHING, row * 0 + NOWHERE, zeros, zeros, zeros, moments, output, zeros, zeros, marked, bins,
    )  # fmt: skip


@triton.jit
def attend_rows(
    query, key, value, mask, bias, sinks, columns, extent, edges, written, scales, sizes, strides, bound_text,
    CAUSAL: tl.constexpr, ENTROPY: tl.constexpr, COLLISION: tl.constexpr, OFFSETS: tl.constexpr,
    VARIANCE: tl.constexpr, KEYED: tl.constexpr, COLUMNS: tl.constexpr, SUMMED: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
    BIN_TILE: tl.constexpr, BAND_TILE: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend for QUERY_TILE queries of one head of one text."""
    heads, group, queries, keys, bins, band = sizes
    query_strides, key_strides, value_strides, mask_strides, bias_strides = strides
    blocks = tl.cdiv(queries, QUERY_TILE)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    block = blocks - 1 - tl.program_id(0) % blocks  # causal: the last blocks take longest, so they start first
    text, head = pair // heads, pair % heads
    first_row = block * QUERY_TILE
    row = first_row + tl.arange(0, QUERY_TILE)
    is_row = row < queries
    low, high = visible_range(extent, text * bound_text, row, is_row, keys, CAUSAL)
    first, last, whole, whole_end = tiles_of(low, high, is_row, keys, KEY_TILE, mask is None and bias is None)
    keyed = (key + text * key_strides[0] + head // group * key_strides[1], key_strides[2])
    valued = (value + text * value_strides[0] + head // group * value_strides[1], value_strides[2])
    if mask is not None:
        mask += text * mask_strides[0] + head * mask_strides[1]
    if bias is not None:
        bias += text * bias_strides[0] + head * bias_strides[1]
    masked, biased = (mask, mask_strides[2], mask_strides[3]), (bias, bias_strides[2], bias_strides[3])
    if columns is not None:
        columns += text * COLUMNS * keys
    query += text * query_strides[0] + head * query_strides[1]
    q = load_rows(query, row, query_strides[2], queries, True, width, UPCAST)
    factors = ((scales[0] if scales[1] is None else scales[1]) * BITS, scales[0], scales[1])
    of_tile = (first_row, queries, keys, bins)
    bounds = (low[:, None], high[:, None])
    state = empty_sums(row, value_width, COLUMNS, SUMMED, QUERY_TILE, BIN_TILE)
    for step in range(first, last - (whole_end - whole)):
        column = tl.where(step < whole, step, step + whole_end - whole) * KEY_TILE
        state = _tile(
            state, q, keyed, valued, columns, edges, masked, biased, bounds, row, column, factors, of_tile, True,
            ENTROPY, COLLISION, OFFSETS, VARIANCE, KEYED, COLUMNS, SUMMED,
            width, value_width, KEY_TILE, BIN_TILE, UPCAST, PRECISION,
        )  # fmt: skip
    if mask is None and bias is None:
        for step in range(whole, whole_end):
            state = _tile(
                state, q, keyed, valued, columns, edges, masked, biased, bounds, row, step * KEY_TILE, factors,
                of_tile, False, ENTROPY, COLLISION, OFFSETS, VARIANCE, KEYED, COLUMNS, SUMMED,
                width, value_width, KEY_TILE, BIN_TILE, UPCAST, PRECISION,
            )  # fmt: skip
    cell = pair * queries + row
    every = (tl.num_programs(0) // blocks).to(tl.int64) * queries
    weight = write_sums(
        state, written, None if sinks is None else sinks + head, edges, bins, cell, every, row, is_row, (low, high),
        bias is not None, ENTROPY, COLLISION, OFFSETS, VARIANCE, KEYED, COLUMNS, SUMMED, value_width, BIN_TILE,
    )  # fmt: skip
    if written[4] is not None:
        write_band(
            written[4], band, q, keyed, masked, biased, bounds, row, (first, last), cell, state[0], weight,
            factors, of_tile, width, KEY_TILE, BAND_TILE, UPCAST, PRECISION,
        )  # fmt: skip
