"""The kernel of measured attention: one program attends for a block of queries of one head and measures its rows.

Keys come in tiles, as in `_tiles`: whatever is wanted of a row is a running sum relative to its largest score so far.
Scores are held in bits (times 1 / ln 2), because exp2 is what the processor has; a bias keeps them in nats, so that
the most negative number of a type stays finite and forbids no more than it says. `docs/gpu.md` has the formulas.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001, ANN202, PLR1704

import triton
import triton.language as tl

BITS = tl.constexpr(1.4426950408889634)  # in a nat
NATS = tl.constexpr(0.6931471805599453)  # in a bit
LEAST = tl.constexpr(-200.0)  # of which exp and exp2 are 0 in float32
NOTHING = tl.constexpr(float("-inf"))
SUMMED = tl.constexpr(4)  # columns up to here are summed one by one, in float32; more are a matrix product


@triton.jit
def _tanh(x):
    """Hyperbolic tangent: from exp, and near 0, where that would cancel, its Taylor series to the 11th power."""
    small = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - small) / (1.0 + small)
    y = x * x
    series = 62.0 / 2835 + y * (-1382.0 / 155925)
    series = 1.0 + y * (-1.0 / 3 + y * (2.0 / 15 + y * (-17.0 / 315 + y * series)))
    return tl.where(tl.abs(x) < 0.3, x * series, tl.where(x < 0, -far, far))


@triton.jit
def _scores(
    products,
    row,
    key,
    start,
    stop,
    mask,
    mask_row,
    mask_key,
    bias,
    bias_row,
    bias_key,
    scale,
    softcap,
    keys,
    queries,
    CHECKED: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Scores of products of queries and keys, to be multiplied by the unit; with a bias, nats.

    `row` is (query, 1), `key` (1 or query, key); `start` and `stop` (query, 1).
    """
    scores = products
    if HAS_CAP:
        scores = _tanh(products * (scale / softcap))
    if HAS_BIAS:
        inside = (row < queries) & (key >= 0) & (key < keys)
        place = row.to(tl.int64) * bias_row + key.to(tl.int64) * bias_key  # n x n numbers: beyond 2^31
        added = tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
        scores = scores * (softcap if HAS_CAP else scale) + added
    seen = products == products
    if CHECKED:
        seen = (key >= start) & (key < stop)
        if HAS_MASK:
            place = row.to(tl.int64) * mask_row + key.to(tl.int64) * mask_key
            seen &= tl.load(mask + place, mask=seen, other=0) != 0
        scores = tl.where(seen, scores, NOTHING)
    return scores, seen


@triton.jit
def _below(scores, maximum, unit, HAS_BIAS: tl.constexpr):
    """Bits by which scores lie below the largest."""
    if HAS_BIAS:
        fallen = tl.maximum(scores - maximum, LEAST, propagate_nan=tl.PropagateNan.ALL)
        return fallen * BITS
    return scores * unit - maximum


@triton.jit
def _tile(
    state,
    query,
    key,
    key_row,
    value,
    value_row,
    columns,
    edges,
    mask,
    mask_row,
    mask_key,
    bias,
    bias_row,
    bias_key,
    row,
    start,
    stop,
    column,
    unit,
    scale,
    softcap,
    keys,
    queries,
    width,
    value_width,
    bins,
    CHECKED: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    COLLISION: tl.constexpr,
    OFFSETS: tl.constexpr,
    VARIANCE: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BINS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    BIN_TILE: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take the keys from `column` on into the running sums; CHECKED where some row may not see all of them."""
    maximum, total, score, square, mean, origin, spread, output, marked, binned = state
    index = tl.arange(0, KEY_TILE)
    at = column + index
    there = at < keys
    channel = tl.arange(0, WIDTH)
    k = tl.load(
        key + at.to(tl.int64)[:, None] * key_row + channel[None, :],
        mask=there[:, None] & (channel < width)[None, :],
        other=0.0,
    )
    if UPCAST:
        k = k.to(tl.float32)
    products = tl.dot(query, tl.trans(k), input_precision=PRECISION)
    scores, seen = _scores(
        products,
        row[:, None],
        at[None, :],
        start[:, None],
        stop[:, None],
        mask,
        mask_row,
        mask_key,
        bias,
        bias_row,
        bias_key,
        scale,
        softcap,
        keys,
        queries,
        CHECKED,
        HAS_MASK,
        HAS_BIAS,
        HAS_CAP,
    )

    largest = tl.max(scores, 1)
    if not HAS_BIAS:
        largest = largest * unit
    largest = tl.maximum(maximum, largest)
    shift = tl.where(largest == NOTHING, 0.0, largest)  # rows that have seen nothing yet
    below = _below(scores, shift[:, None], unit, HAS_BIAS)
    p = tl.exp2(below)
    fallen = maximum - shift
    if HAS_BIAS:
        fallen *= BITS
    rescale = tl.exp2(fallen)
    part = tl.sum(p, 1)
    before = total * rescale

    if ENTROPY:
        # an allowed score of -inf gives 0 times -inf here: NaN, which the end of the kernel tells
        if CHECKED:
            below = tl.where(seen, below, 0.0)
        score = (score + tl.maximum(fallen, LEAST) * total) * rescale + tl.sum(p * below, 1)
    if COLLISION:
        square = square * rescale * rescale + tl.sum(p * p, 1)
    if OFFSETS:
        place = index.to(tl.float32)
        local = tl.sum(p * place[None, :], 1) / tl.where(part > 0.0, part, 1.0)
        after = before + part
        share = part / tl.where(after > 0.0, after, 1.0)
        jump = local + (column - origin).to(tl.float32) - mean
        if VARIANCE:
            away = place[None, :] - local[:, None]
            spread = spread * rescale + tl.sum(p * away * away, 1) + jump * jump * before * share
        # the mean counts from the tile that holds most of the weight: no digits are lost far from key 0
        is_here = share > 0.5
        mean = tl.where(is_here, local - jump * (1.0 - share), mean + jump * share)
        origin = tl.where(is_here, column, origin)

    value_channel = tl.arange(0, VALUE_WIDTH)
    v = tl.load(
        value + at.to(tl.int64)[:, None] * value_row + value_channel[None, :],
        mask=there[:, None] & (value_channel < value_width)[None, :],
        other=0.0,
    )
    if UPCAST:
        v = v.to(tl.float32)
    output = tl.dot(p.to(v.dtype), v, output * rescale[:, None], input_precision=PRECISION)
    if COLUMNS > 0:
        number = tl.arange(0, COLUMN_TILE)
        marked = marked * rescale[:, None]
        if COLUMNS <= SUMMED:
            for one in tl.static_range(COLUMNS):
                c = tl.load(columns + one * keys + at, mask=there, other=0.0)
                marked += tl.where(number[None, :] == one, tl.sum(p * c[None, :], 1)[:, None], 0.0)
        else:
            c = tl.load(
                columns + number[None, :] * keys + at[:, None],
                mask=there[:, None] & (number < COLUMNS)[None, :],
                other=0.0,
            )
            marked = tl.dot(p, c, marked, input_precision="tf32x3")  # float32 whatever the values are
    if HAS_BINS:
        segment = tl.arange(0, BIN_TILE)
        binned = binned * rescale[:, None]
        offset = at[None, :] - row[:, None]
        farthest = column + KEY_TILE - 1 - tl.min(row)
        # segments that this tile touches: mostly one or two, as they double with the distance
        starts = tl.load(edges + segment, mask=segment < bins, other=1 << 30)
        first = tl.maximum(tl.sum((starts <= column - tl.max(row)).to(tl.int32)) - 1, 0)
        last = tl.sum((starts <= farthest).to(tl.int32))
        for one in range(first, last):
            inside = (offset >= tl.load(edges + one)) & (offset < tl.load(edges + one + 1))
            weight = tl.sum(tl.where(inside, p, 0.0), 1)
            binned += tl.where(segment[None, :] == one, weight[:, None], 0.0)
    return largest, before + part, score, square, mean, origin, spread, output, marked, binned


@triton.jit
def attend_rows(
    query,
    key,
    value,
    mask,
    bias,
    sinks,
    columns,
    start,
    stop,
    edges,
    output,
    rows,
    column_sums,
    bin_sums,
    band_weights,
    scale,
    softcap,
    heads,
    group,
    queries,
    keys,
    width,
    value_width,
    bins,
    band,
    query_text,
    query_head,
    query_row,
    key_text,
    key_head,
    key_row,
    value_text,
    value_head,
    value_row,
    mask_text,
    mask_head,
    mask_row,
    mask_key,
    bias_text,
    bias_head,
    bias_row,
    bias_key,
    bound_text,
    HAS_EXTENT: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    ENTROPY: tl.constexpr,
    COLLISION: tl.constexpr,
    OFFSETS: tl.constexpr,
    VARIANCE: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BINS: tl.constexpr,
    HAS_BAND: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    BIN_TILE: tl.constexpr,
    BAND_TILE: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend for QUERY_TILE queries of one head of one text; `rows` is (7, text, head, query) of float64."""
    blocks = tl.cdiv(queries, QUERY_TILE)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    block = blocks - 1 - tl.program_id(0) % blocks  # under a causal mask the last have most to do: they begin
    text, head = pair // heads, pair % heads
    row = block * QUERY_TILE + tl.arange(0, QUERY_TILE)
    is_row = row < queries
    if HAS_EXTENT:
        low = tl.load(start + text * bound_text + row, mask=is_row, other=0).to(tl.int32)
        high = tl.load(stop + text * bound_text + row, mask=is_row, other=0).to(tl.int32)
    else:
        low = tl.where(is_row, 0, 0)
        high = tl.where(is_row, tl.minimum(row + 1, keys) if CAUSAL else keys, 0)

    # tiles that some row sees, and among them those of which every row sees all
    seen = high > low
    first = tl.min(tl.where(seen, low, keys)) // KEY_TILE
    last = tl.maximum(tl.cdiv(tl.max(tl.where(seen, high, 0)), KEY_TILE), first)
    if HAS_MASK or HAS_BIAS:
        whole = last
        whole_end = last
    else:
        whole = tl.minimum(tl.cdiv(tl.max(low), KEY_TILE), last)
        whole = tl.maximum(whole, first)
        whole_end = tl.maximum(tl.min(tl.where(is_row, high, keys)) // KEY_TILE, whole)

    query += text * query_text + head * query_head
    key += text * key_text + head // group * key_head
    value += text * value_text + head // group * value_head
    if HAS_MASK:
        mask += text * mask_text + head * mask_head
    if HAS_BIAS:
        bias += text * bias_text + head * bias_head
    if COLUMNS > 0:
        columns += text * COLUMNS * keys
    channel = tl.arange(0, WIDTH)
    q = tl.load(
        query + row.to(tl.int64)[:, None] * query_row + channel[None, :],
        mask=is_row[:, None] & (channel < width)[None, :],
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)
    unit = (softcap if HAS_CAP else scale) * BITS

    zeros = tl.zeros((QUERY_TILE,), tl.float32)
    state = (
        zeros + NOTHING,
        zeros,
        zeros,
        zeros,
        zeros,
        tl.zeros((QUERY_TILE,), tl.int32),
        zeros,
        tl.zeros((QUERY_TILE, VALUE_WIDTH), tl.float32),
        tl.zeros((QUERY_TILE, COLUMN_TILE), tl.float32),
        tl.zeros((QUERY_TILE, BIN_TILE), tl.float32),
    )
    for step in range(first, last - (whole_end - whole)):
        column = tl.where(step < whole, step, step + whole_end - whole) * KEY_TILE
        state = _tile(
            state, q, key, key_row, value, value_row, columns, edges,
            mask, mask_row, mask_key, bias, bias_row, bias_key,
            row, low, high, column, unit, scale, softcap, keys, queries, width, value_width, bins,
            True, HAS_MASK, HAS_BIAS, HAS_CAP, ENTROPY, COLLISION, OFFSETS, VARIANCE, COLUMNS, HAS_BINS,
            WIDTH, VALUE_WIDTH, QUERY_TILE, KEY_TILE, COLUMN_TILE, BIN_TILE, UPCAST, PRECISION,
        )  # fmt: skip
    if not (HAS_MASK or HAS_BIAS):
        for step in range(whole, whole_end):
            state = _tile(
                state, q, key, key_row, value, value_row, columns, edges,
                mask, mask_row, mask_key, bias, bias_row, bias_key,
                row, low, high, step * KEY_TILE, unit, scale, softcap, keys, queries, width, value_width, bins,
                False, HAS_MASK, HAS_BIAS, HAS_CAP, ENTROPY, COLLISION, OFFSETS, VARIANCE, COLUMNS, HAS_BINS,
                WIDTH, VALUE_WIDTH, QUERY_TILE, KEY_TILE, COLUMN_TILE, BIN_TILE, UPCAST, PRECISION,
            )  # fmt: skip
    maximum, total, score, square, mean, origin, spread, mixed, marked, binned = state

    # running sums become weights: share turns p into one
    there = maximum != NOTHING
    sum_of_p = tl.where(there, total, 1.0).to(tl.float64)
    log_total = tl.log(sum_of_p)
    level = tl.where(there, maximum, 0.0).to(tl.float64) * (1.0 if HAS_BIAS else NATS) + log_total
    log_sum_exp = level
    empty = zeros.to(tl.float64) + NOTHING
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float64)
        more = sink - level
        log_sum_exp = tl.maximum(level, sink) + tl.log(1.0 + tl.exp(-tl.abs(more)))
        empty = zeros.to(tl.float64) + sink
    mass = tl.where(there, tl.exp(level - log_sum_exp), 0.0)
    if ENTROPY:
        mass = tl.where(score == score, mass, score.to(tl.float64))  # NaN: a score of -inf was seen
    share = mass / sum_of_p
    place = pair * queries + row
    every = (tl.num_programs(0) // blocks).to(tl.int64) * queries
    tl.store(rows + place, tl.where(there, log_sum_exp, empty), mask=is_row)
    tl.store(rows + every + place, mass, mask=is_row)
    tl.store(rows + 2 * every + place, tl.where(there, share, 0.0), mask=is_row)
    if ENTROPY:
        most = tl.log(tl.maximum(high - low, 1).to(tl.float64))
        entropy = tl.maximum(log_total - score.to(tl.float64) / sum_of_p * NATS, 0.0)
        some = tl.where(mass > 0.0, mass, 1.0)
        entropy = mass * tl.minimum(entropy, most) - mass * tl.log(some)
        tl.store(rows + 3 * every + place, entropy, mask=is_row)
    if COLLISION:
        tl.store(rows + 4 * every + place, square.to(tl.float64) * share * share, mask=is_row)
    if OFFSETS:
        away = (origin - row).to(tl.float64) + mean.to(tl.float64)
        tl.store(rows + 5 * every + place, tl.where(there, away, 0.0), mask=is_row)
        if VARIANCE:
            tl.store(rows + 6 * every + place, spread.to(tl.float64) / sum_of_p, mask=is_row)
    weight = share.to(tl.float32)[:, None]
    value_channel = tl.arange(0, VALUE_WIDTH)
    tl.store(
        output + place[:, None] * value_width + value_channel[None, :],
        (mixed * weight).to(output.dtype.element_ty),
        mask=is_row[:, None] & (value_channel < value_width)[None, :],
    )
    if COLUMNS > 0:
        number = tl.arange(0, COLUMN_TILE)
        tl.store(
            column_sums + place[:, None] * COLUMNS + number[None, :],
            marked * weight,
            mask=is_row[:, None] & (number < COLUMNS)[None, :],
        )
    if HAS_BINS:
        segment = tl.arange(0, BIN_TILE)
        middle = bins // 2
        side = tl.where(segment > middle, segment - 1, segment)
        tl.store(
            bin_sums + place[:, None] * (bins - 1) + side[None, :],
            binned * weight,
            mask=is_row[:, None] & ((segment < bins) & (segment != middle))[None, :],
        )
    if HAS_BAND:
        # the diagonals once more: products of the tiles that they cross, gathered to one column an offset
        shift = tl.where(there, maximum, 0.0)[:, None]
        index = tl.arange(0, KEY_TILE)
        for nearest in range(-band, band + 1, BAND_TILE):
            offset = nearest + tl.arange(0, BAND_TILE)
            at = row[:, None] + offset[None, :]
            found = tl.zeros((QUERY_TILE, BAND_TILE), tl.float32)
            left = tl.maximum(block * QUERY_TILE + nearest, first * KEY_TILE)
            right = tl.minimum((block + 1) * QUERY_TILE + nearest + BAND_TILE, last * KEY_TILE)
            for column in range(left, right, KEY_TILE):
                beside = column + index
                k = tl.load(
                    key + beside.to(tl.int64)[:, None] * key_row + channel[None, :],
                    mask=(beside < keys)[:, None] & (channel < width)[None, :],
                    other=0.0,
                )
                if UPCAST:
                    k = k.to(tl.float32)
                products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                local = at - column
                here = tl.gather(products, tl.minimum(tl.maximum(local, 0), KEY_TILE - 1), 1)
                found = tl.where((local >= 0) & (local < KEY_TILE), here, found)
            scores, _ = _scores(
                found, row[:, None], at, low[:, None], high[:, None],
                mask, mask_row, mask_key, bias, bias_row, bias_key, scale, softcap, keys, queries,
                True, HAS_MASK, HAS_BIAS, HAS_CAP,
            )  # fmt: skip
            on_band = is_row[:, None] & (offset <= band)[None, :]
            tl.store(
                band_weights + place[:, None] * (2 * band + 1) + (offset + band)[None, :],
                tl.exp2(_below(scores, shift, unit, HAS_BIAS)) * weight,
                mask=on_band,
            )
