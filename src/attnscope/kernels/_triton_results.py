"""How the kernel of measured attention writes its results after the last key: see `_triton_kernels`."""

# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001, ANN202, PLR0124

import triton
import triton.language as tl

from attnscope.kernels._triton_parts import NOTHING, closed, fallen, load_rows, padded, scored

NATS = tl.constexpr(0.6931471805599453)  # in a bit


@triton.jit
def write_rows(
    rows, sink, place, every, row, is_row, state, bounds,
    IN_NATS: tl.constexpr, ENTROPY: tl.constexpr, COLLISION: tl.constexpr, OFFSETS: tl.constexpr,
    VARIANCE: tl.constexpr, KEYED: tl.constexpr,
):  # fmt: skip
    """Write the measures of rows, each ``(text, head, query)``, and return the factor from p to weight, float64."""
    maximum, largest_key, total, score, square, moments = state
    there = maximum != NOTHING
    sum_of_p = tl.where(there, total, 1.0).to(tl.float64)
    log_total = tl.log(sum_of_p)
    level = tl.where(there, maximum, 0.0).to(tl.float64) * (1.0 if IN_NATS else NATS) + log_total
    log_sum_exp = level
    empty = level * 0.0 + NOTHING
    if sink is not None:
        logit = tl.load(sink).to(tl.float64)
        log_sum_exp = tl.maximum(level, logit) + tl.log(1.0 + tl.exp(-tl.abs(logit - level)))
        empty = level * 0.0 + logit
    mass = tl.where(there, tl.exp(level - log_sum_exp), 0.0)
    if ENTROPY:
        mass = tl.where(score == score, mass, score.to(tl.float64))  # NaN: a score was -inf
    share = mass / sum_of_p
    tl.store(rows + place, tl.where(there, log_sum_exp, empty), mask=is_row)
    tl.store(rows + every + place, mass, mask=is_row)
    tl.store(rows + 2 * every + place, tl.where(there, share, 0.0), mask=is_row)
    if ENTROPY:
        most = tl.log(tl.maximum(bounds[1] - bounds[0], 1).to(tl.float64))
        entropy = tl.maximum(log_total - score.to(tl.float64) / sum_of_p * NATS, 0.0)
        some = tl.where(mass > 0.0, mass, 1.0)
        entropy = mass * tl.minimum(entropy, most) - mass * tl.log(some)
        tl.store(rows + 3 * every + place, entropy, mask=is_row)
    if COLLISION:
        tl.store(rows + 4 * every + place, square.to(tl.float64) * share * share, mask=is_row)
    if OFFSETS:
        first_moment, second_moment, origin = moments
        mean = first_moment.to(tl.float64) / sum_of_p
        away = (origin - row).to(tl.float64) + mean
        tl.store(rows + 5 * every + place, tl.where(there, away, 0.0), mask=is_row)
        if VARIANCE:
            variance = second_moment.to(tl.float64) / sum_of_p - mean * mean
            tl.store(rows + 6 * every + place, tl.maximum(variance, 0.0), mask=is_row)
    if KEYED:
        tl.store(rows + 7 * every + place, tl.where(there, largest_key, -1).to(tl.float64), mask=is_row)
    return share


@triton.jit
def write_output(output, mixed, place, is_row, weight, value_width: tl.constexpr):
    """Write the mixed values of rows, ``(text, head, query, channel)``."""
    channel = tl.arange(0, padded(value_width))
    tl.store(
        output + place[:, None] * value_width + channel[None, :],
        (mixed * weight).to(output.dtype.element_ty),
        mask=is_row[:, None] & (channel < value_width)[None, :],
    )


@triton.jit
def write_columns(
    column_sums, mark, second_mark, marked, place, is_row, weight, COLUMNS: tl.constexpr, SUMMED: tl.constexpr
):
    """Write the weights on the columns: one or two running sums, or a block of them."""
    if COLUMNS > SUMMED:
        number = tl.arange(0, padded(COLUMNS))[None, :]
        is_column = is_row[:, None] & (number < COLUMNS)
        tl.store(column_sums + place[:, None] * COLUMNS + number, marked * weight, mask=is_column)
    else:
        at = column_sums + place[:, None] * COLUMNS
        tl.store(at, mark[:, None] * weight, mask=is_row[:, None])
        if COLUMNS > 1:
            tl.store(at + 1, second_mark[:, None] * weight, mask=is_row[:, None])


@triton.jit
def write_bins(bin_sums, bins, state, maximum, place, is_row, weight, IN_NATS: tl.constexpr, BIN_TILE: tl.constexpr):
    """Write the weights in the bins; the middle segment is not a bin."""
    binned, since, opened, number, _low, _high = state
    binned = closed(binned, since, opened, number, maximum, IN_NATS, BIN_TILE) * weight
    segment = tl.arange(0, BIN_TILE)[None, :]
    middle = bins // 2
    is_bin = is_row[:, None] & (segment < bins) & (segment != middle)
    side = tl.where(segment > middle, segment - 1, segment)
    # differences of sums may fall below 0 by a rounding
    tl.store(bin_sums + place[:, None] * (bins - 1) + side, tl.maximum(binned, 0.0), mask=is_bin)


@triton.jit
def write_sums(
    state, written, sink, edges, bins, place, every, row, is_row, bounds,
    IN_NATS: tl.constexpr, ENTROPY: tl.constexpr, COLLISION: tl.constexpr, OFFSETS: tl.constexpr,
    VARIANCE: tl.constexpr, KEYED: tl.constexpr, COLUMNS: tl.constexpr, SUMMED: tl.constexpr,
    value_width: tl.constexpr, BIN_TILE: tl.constexpr,
):  # fmt: skip
    """Write all running sums of rows, and return the factor from p to weight of each row."""
    maximum, largest_key, total, score, square, moments, mixed, mark, second_mark, marked, bins_state = state
    output, rows, column_sums, bin_sums, _band_weights = written
    share = write_rows(
        rows, sink, place, every, row, is_row, (maximum, largest_key, total, score, square, moments), bounds,
        IN_NATS, ENTROPY, COLLISION, OFFSETS, VARIANCE, KEYED,
    )  # fmt: skip
    weight = share.to(tl.float32)[:, None]
    write_output(output, mixed, place, is_row, weight, value_width)
    if COLUMNS > 0:
        write_columns(column_sums, mark, second_mark, marked, place, is_row, weight, COLUMNS, SUMMED)
    if edges is not None:
        write_bins(bin_sums, bins, bins_state, maximum, place, is_row, weight, IN_NATS, BIN_TILE)
    return weight


@triton.jit
def write_band(
    band_weights, band, query, key, mask, bias, bounds, row, tiles, place, maximum, weight, factors, sizes,
    width: tl.constexpr, KEY_TILE: tl.constexpr, BAND_TILE: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the weights on the diagonals: recompute the tiles that they cross, one column an offset."""
    first_row, queries, keys, _bins = sizes
    QUERY_TILE: tl.constexpr = row.shape[0]
    IN_NATS: tl.constexpr = bias[0] is not None  # pyright: ignore[reportAssignmentType]
    shift = tl.where(maximum == NOTHING, 0.0, maximum)[:, None]
    for nearest in range(-band, band + 1, BAND_TILE):
        offset = nearest + tl.arange(0, BAND_TILE)[None, :]
        at = row[:, None] + offset
        on_band = tl.zeros((QUERY_TILE, BAND_TILE), tl.float32)
        # columns that these diagonals cross in these rows, cut to the tiles that the rows attend to
        left = tl.maximum(first_row + nearest, tiles[0] * KEY_TILE)
        right = tl.minimum(first_row + QUERY_TILE + nearest + BAND_TILE, tiles[1] * KEY_TILE)
        for column in range(left, right, KEY_TILE):
            k = load_rows(key[0], column + tl.arange(0, KEY_TILE), key[1], keys, True, width, UPCAST)
            products = tl.dot(query, tl.trans(k), input_precision=PRECISION)
            local = at - column
            here = tl.gather(products, tl.minimum(tl.maximum(local, 0), KEY_TILE - 1), 1)
            on_band = tl.where((local >= 0) & (local < KEY_TILE), here, on_band)
        scores, _seen = scored(on_band, row[:, None], at, bounds, mask, bias, factors, queries, keys, True)
        tl.store(
            band_weights + place[:, None] * (2 * band + 1) + offset + band,
            tl.exp2(fallen(scores, shift, factors[0], IN_NATS)) * weight,
            mask=(row < queries)[:, None] & (offset <= band),
        )
