"""How the kernel of measured attention processes one tile of scores: see `_triton_kernels`."""

# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001, ANN202, PLR2004

import triton
import triton.language as tl

BITS = tl.constexpr(1.4426950408889634)  # in a nat
LEAST = tl.constexpr(-200.0)  # of which exp and exp2 are 0 in float32
NOTHING = tl.constexpr(float("-inf"))
NOWHERE = tl.constexpr(1 << 30)  # beyond every offset


@triton.jit
def load_rows(side, at, side_row, keys, CHECKED: tl.constexpr, width: tl.constexpr, UPCAST: tl.constexpr):
    """Load a block of queries, keys or values; rows beyond the last and the padding of the width are 0."""
    PADDED: tl.constexpr = padded(width)
    channel = tl.arange(0, PADDED)
    place = side + at.to(tl.int64)[:, None] * side_row + channel[None, :]
    if CHECKED:
        tile = tl.load(place, mask=(at < keys)[:, None] & (channel < width)[None, :], other=0.0)
    elif width == PADDED:
        tile = tl.load(place)
    else:
        tile = tl.load(place, mask=(channel < width)[None, :], other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.constexpr_function
def padded(width):
    """The next power of two that a matrix product takes."""
    return max(16, 1 << (width - 1).bit_length())


@triton.jit
def tanh(x):
    """Hyperbolic tangent: from exp; near 0, where that would cancel, by its Taylor series to the 11th power."""
    small = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - small) / (1.0 + small)
    y = x * x
    series = 62.0 / 2835 + y * (-1382.0 / 155925)
    series = 1.0 + y * (-1.0 / 3 + y * (2.0 / 15 + y * (-17.0 / 315 + y * series)))
    return tl.where(tl.abs(x) < 0.3, x * series, tl.where(x < 0, -far, far))


@triton.jit
def scored(products, row, key, bounds, mask, bias, factors, queries, keys, CHECKED: tl.constexpr):
    """Scores from products of queries and keys (-inf where masked), and where they are allowed."""
    _unit, scale, softcap = factors
    scores = products
    if softcap is not None:
        scores = tanh(products * (scale / softcap))
    if bias[0] is not None:
        inside = (row < queries) & (key >= 0) & (key < keys)
        place = row.to(tl.int64) * bias[1] + key.to(tl.int64) * bias[2]  # n x n numbers: beyond 2^31
        added = tl.load(bias[0] + place, mask=inside, other=0.0).to(tl.float32)
        scores = scores * (scale if softcap is None else softcap) + added
    seen = (key >= bounds[0]) & (key < bounds[1])
    if CHECKED:
        if mask[0] is not None:
            place = row.to(tl.int64) * mask[1] + key.to(tl.int64) * mask[2]
            seen &= tl.load(mask[0] + place, mask=seen, other=0) != 0
        scores = tl.where(seen, scores, NOTHING)
    return scores, seen


@triton.jit
def fallen(scores, maximum, unit, IN_NATS: tl.constexpr):
    """Bits by which scores are below the largest."""
    if IN_NATS:
        # the most negative number of a type stays finite; NaN has to stay NaN
        return tl.maximum(scores - maximum, LEAST, propagate_nan=tl.PropagateNan.ALL) * BITS
    return scores * unit - maximum


@triton.jit
def with_key(largest_key, maximum, largest, is_largest, at):
    """The first key with the largest score so far; tiles may come in any order."""
    here = tl.min(tl.where(is_largest, at[None, :], NOWHERE), 1)
    kept = tl.where(maximum > largest, largest_key, tl.minimum(largest_key, here))
    return tl.where(largest > maximum, here, kept)


@triton.jit
def with_moments(moments, before, rescale, part, p, column, VARIANCE: tl.constexpr, KEY_TILE: tl.constexpr):
    """Add a tile to the first and second moment of the key's position."""
    first, second, origin = moments
    middle = column + KEY_TILE // 2
    place = (tl.arange(0, KEY_TILE) - KEY_TILE // 2).to(tl.float32)
    own = tl.sum(p * place[None, :], 1)
    apart = (middle - origin).to(tl.float32)
    is_here = part > before  # the origin moves to this tile's middle if it outweighs all before
    moved, away = tl.where(is_here, apart, 0.0), tl.where(is_here, 0.0, apart)
    first = first * rescale
    if VARIANCE:
        # about an origin d further on, the second moment is M2 - 2 d M1 + d^2 Z: docs/scale/gpu.md, One pass
        second = second * rescale - moved * (2.0 * first - moved * before)
        second += tl.sum(p * (place * place)[None, :], 1) + away * (2.0 * own + away * part)
    first += own + away * part - moved * before
    return first, second, tl.where(is_here, middle, origin)


@triton.jit
def with_bins(
    state, p, part, rescale, largest, at, row, column, first_row, edges, bins,
    IN_NATS: tl.constexpr, QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr, BIN_TILE: tl.constexpr,
):  # fmt: skip
    """Add a tile to the bins of offsets."""
    _binned, _maximum, opened, _number, low, high = state
    nearest = column - (first_row + QUERY_TILE - 1)
    farthest = column + KEY_TILE - 1 - first_row
    opened = opened * rescale
    binned, maximum, number = _binned, _maximum, _number
    if (nearest >= low) & (farthest < high):
        opened += part
    else:
        segment = tl.arange(0, BIN_TILE)[None, :]
        starts = tl.load(edges + segment, mask=segment < bins, other=NOWHERE)
        first = tl.maximum(tl.sum((starts <= nearest).to(tl.int32)) - 1, 0)
        last = tl.sum((starts <= farthest).to(tl.int32)) - 1
        binned = closed(binned, maximum, opened, number, largest, IN_NATS, BIN_TILE)
        binned += tl.where(segment == first, part[:, None], 0.0)
        offset = at[None, :] - row[:, None]
        for edge in range(first + 1, last + 1):
            beyond = tl.sum(tl.where(offset >= tl.load(edges + edge), p, 0.0), 1)[:, None]
            binned += tl.where(segment == edge, beyond, tl.where(segment == edge - 1, -beyond, 0.0))
        maximum = largest
        opened = tl.zeros_like(opened)
        number = last
        low = tl.load(edges + last)
        high = tl.load(edges + last + 1)
    return binned, maximum, opened, number, low, high


@triton.jit
def closed(binned, maximum, opened, number, largest, IN_NATS: tl.constexpr, BIN_TILE: tl.constexpr):
    """The bins relative to the largest score so far, the open one included."""
    since = maximum - tl.where(largest == NOTHING, 0.0, largest)
    if IN_NATS:
        since *= BITS
    segment = tl.arange(0, BIN_TILE)[None, :]
    return binned * tl.exp2(since)[:, None] + tl.where(segment == number, opened[:, None], 0.0)


@triton.jit
def with_columns(sums, p, rescale, columns, at, keys, COLUMNS: tl.constexpr, SUMMED: tl.constexpr):
    """The running sums over marked keys: up to SUMMED columns one by one, more by a matrix product."""
    first, second, product = sums
    if COLUMNS > SUMMED:
        number = tl.arange(0, padded(COLUMNS))[None, :]
        is_column = (at < keys)[:, None] & (number < COLUMNS)
        c = tl.load(columns + number * keys + at[:, None], mask=is_column, other=0.0)
        # in float32 whatever the type of the values is
        product = tl.dot(p, c, product * rescale[:, None], input_precision="tf32x3")
    elif COLUMNS > 0:
        c = tl.load(columns + at, mask=at < keys, other=0.0)
        first = first * rescale + tl.sum(p * c[None, :], 1)
        if COLUMNS > 1:
            c = tl.load(columns + keys + at, mask=at < keys, other=0.0)
            second = second * rescale + tl.sum(p * c[None, :], 1)
    return first, second, product
