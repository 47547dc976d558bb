"""Decides how a tensor is quantised on a device: Triton kernels with every sum's order fixed.

The order is that of `zyfa_triton.quantize`, which says it in words and holds the same for a CPU.
They are not launched here.
"""

import triton
import triton.language as tl

E4M3_MAX: tl.constexpr = tl.constexpr(448.0)
AMAX_FLOOR: tl.constexpr = tl.constexpr(2.0**-100)
MEAN_LIMIT: tl.constexpr = tl.constexpr(2.0**100)


@triton.jit
def load_rows(ptr, first, stride, seqlen, headdim, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows first.. of one head as float32 (ROWS, WIDTH), zero outside, and where they are
    inside."""
    offs_s = first + tl.arange(0, ROWS)
    offs_d = tl.arange(0, WIDTH)
    inside = (offs_s[:, None] < seqlen) & (offs_d[None, :] < headdim)
    ptrs = ptr + offs_s.to(tl.int64)[:, None] * stride + offs_d[None, :]
    return tl.load(ptrs, mask=inside, other=0.0).to(tl.float32), inside


@triton.jit
def _halve(tile, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Row i plus row i + ROWS // 2: a sum of two, so that its order cannot depend on a layout."""
    return tl.sum(tl.reshape(tile, [2, ROWS // 2, WIDTH]), 0)


@triton.jit
def sum_of_chunk(
    x_ptr, sums_ptr, pid, stride_b, stride_s, stride_h, nheads, seqlen, headdim, chunks,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What the pid-th program of `partial_sums` does."""
    chunk = pid % chunks
    head = (pid // chunks % nheads).to(tl.int64)
    batch = (pid // chunks // nheads).to(tl.int64)
    x_ptr += batch * stride_b + head * stride_h
    tile = tl.zeros([ROWS, WIDTH], tl.float32)
    last = tl.minimum(chunk * CHUNK + CHUNK, seqlen)
    for first in range(chunk * CHUNK, last, ROWS):
        rows, _ = load_rows(x_ptr, first, stride_s, seqlen, headdim, ROWS, WIDTH)
        tile += rows
    tl.static_assert(ROWS == 64, "the halvings below are written out for 64 rows")
    tile = _halve(tile, 64, WIDTH)
    tile = _halve(tile, 32, WIDTH)
    tile = _halve(tile, 16, WIDTH)
    tile = _halve(tile, 8, WIDTH)
    tile = _halve(tile, 4, WIDTH)
    total = _halve(tile, 2, WIDTH)
    offs_d = tl.arange(0, WIDTH)
    row = (batch * nheads + head) * chunks + chunk
    tl.store(sums_ptr + row * headdim + offs_d, tl.reshape(total, [WIDTH]), mask=offs_d < headdim)


@triton.jit(do_not_specialize=["seqlen", "chunks"])
def partial_sums(
    x_ptr, sums_ptr, stride_b, stride_s, stride_h, nheads, seqlen, headdim, chunks,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum of each channel over one chunk of rows: float32 sums (batch, nheads, chunks, headdim).

    Grid: (chunks * nheads * batch,). ROWS must be 64.
    """
    sum_of_chunk(
        x_ptr, sums_ptr, tl.program_id(0), stride_b, stride_s, stride_h, nheads, seqlen, headdim,
        chunks, CHUNK, ROWS, WIDTH,
    )  # fmt: skip


@triton.jit
def mean_of(sums_ptr, row, chunks, seqlen, headdim, WIDTH: tl.constexpr):
    """(WIDTH,): the chunks' sums added in order, over seqlen; 0 where that is not below
    MEAN_LIMIT."""
    offs_d = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for chunk in range(0, chunks):
        ptrs = sums_ptr + (row * chunks + chunk) * headdim + offs_d
        total += tl.load(ptrs, mask=offs_d < headdim, other=0.0)
    mean = tl.div_rn(total, tl.zeros([WIDTH], tl.float32) + seqlen.to(tl.float32))
    return tl.where(tl.abs(mean) < MEAN_LIMIT, mean, 0.0)


@triton.jit
def amax_of_rows(
    x_ptr, sums_ptr, mean_ptr, row, block, chunks, stride_s, seqlen, headdim,
    HAS_MEAN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Largest |x - mean| of a head's block of CHUNK rows, infinite if it holds a NaN.

    x_ptr: the head's first row. row: the head's number in the batch, chunks: partial sums of a
    head, for the mean, which block 0 stores.
    """
    mean = tl.zeros([WIDTH], tl.float32)
    if HAS_MEAN:
        offs_d = tl.arange(0, WIDTH)
        mean = mean_of(sums_ptr, row, chunks, seqlen, headdim, WIDTH)
        if block == 0:
            tl.store(mean_ptr + row * headdim + offs_d, mean, mask=offs_d < headdim)
    largest = tl.zeros([ROWS, WIDTH], tl.float32)
    last = tl.minimum(block * CHUNK + CHUNK, seqlen)
    for first in range(block * CHUNK, last, ROWS):
        rows, inside = load_rows(x_ptr, first, stride_s, seqlen, headdim, ROWS, WIDTH)
        magnitude = tl.abs(rows - mean[None, :])
        magnitude = tl.where(magnitude < float("inf"), magnitude, float("inf"))
        largest = tl.maximum(largest, tl.where(inside, magnitude, 0.0))
    return tl.max(tl.max(largest, 1), 0)


@triton.jit(do_not_specialize=["seqlen", "chunks"])
def partial_amax(
    x_ptr, sums_ptr, mean_ptr, amax_ptr, stride_b, stride_s, stride_h, nheads, seqlen, headdim,
    chunks, HAS_MEAN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Largest |x - mean| of one chunk, infinite if x holds a NaN: float32 (batch, nheads, chunks).

    Grid: (chunks * nheads * batch,). The first chunk of a head stores its mean.
    """
    pid = tl.program_id(0)
    chunk = pid % chunks
    head = (pid // chunks % nheads).to(tl.int64)
    batch = (pid // chunks // nheads).to(tl.int64)
    row = batch * nheads + head
    x_ptr += batch * stride_b + head * stride_h
    amax = amax_of_rows(
        x_ptr, sums_ptr, mean_ptr, row, chunk, chunks, stride_s, seqlen, headdim,
        HAS_MEAN, CHUNK, ROWS, WIDTH,
    )  # fmt: skip
    tl.store(amax_ptr + row * chunks + chunk, amax)


@triton.jit
def _amax_of(amax_ptr, first, count, BLOCK: tl.constexpr):
    """The largest of `count` partial results from `first` on."""
    offs = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        inside = start + offs < count
        largest = tl.maximum(largest, tl.load(amax_ptr + first + start + offs, inside, other=0.0))
    return tl.max(largest, 0)


@triton.jit
def scale_of_amax(amax):
    """descale, its inverse and whether amax is finite; decides about 0, tiny and infinite ones."""
    floored = tl.maximum(amax, AMAX_FLOOR)
    top = tl.full([], E4M3_MAX, tl.float32)
    is_finite = amax < float("inf")
    descale = tl.where(amax == 0.0, 1.0, tl.div_rn(floored, top))
    inverse = tl.where(amax == 0.0, 1.0, tl.div_rn(top, floored))
    return tl.where(is_finite, descale, float("nan")), inverse, is_finite


@triton.jit
def codes_of(rows, mean, inverse, is_finite):
    """Codes (uint8) of float32 rows (ROWS, WIDTH) less their mean (WIDTH,).

    NaN has the code of NaN: of parts of K (`zyfa_triton.joint_scale`) the scale stays finite.
    """
    scaled = (rows - mean[None, :]) * inverse
    is_number = scaled == scaled  # targets differ in what a maximum makes of NaN
    scaled = tl.minimum(tl.maximum(scaled, -E4M3_MAX), E4M3_MAX)
    code = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(is_finite, tl.where(is_number, code, 0x7F), 0x7F).to(tl.uint8)


@triton.jit(do_not_specialize=["seqlen", "chunks", "heads_a_scale"])
def to_e4m3(
    x_ptr, mean_ptr, amax_ptr, codes_ptr, descale_ptr, stride_b, stride_s, stride_h,
    nheads, heads_a_scale, seqlen, headdim, chunks,
    HAS_MEAN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Codes of one chunk, (batch, seqlen, nheads, headdim) contiguous, and the descales.

    Grid: (chunks * nheads * batch,). A scale covers `heads_a_scale` of the batch * nheads rows, in
    order. The first program of a scale stores its descale.
    """
    pid = tl.program_id(0)
    chunk = pid % chunks
    head = (pid // chunks % nheads).to(tl.int64)
    batch = (pid // chunks // nheads).to(tl.int64)
    row = batch * nheads + head
    scale_index = row // heads_a_scale
    count = heads_a_scale.to(tl.int64) * chunks
    amax = _amax_of(amax_ptr, scale_index * count, count, 128)
    descale, inverse, is_finite = scale_of_amax(amax)
    if (chunk == 0) & (row == scale_index * heads_a_scale):
        tl.store(descale_ptr + scale_index, descale)

    offs_d = tl.arange(0, WIDTH)
    mean = tl.zeros([WIDTH], tl.float32)
    if HAS_MEAN:
        mean = tl.load(mean_ptr + row * headdim + offs_d, mask=offs_d < headdim, other=0.0)
    x_ptr += batch * stride_b + head * stride_h
    codes_ptr += (batch * seqlen * nheads + head) * headdim
    last = tl.minimum(chunk * CHUNK + CHUNK, seqlen)
    for first in range(chunk * CHUNK, last, ROWS):
        rows, inside = load_rows(x_ptr, first, stride_s, seqlen, headdim, ROWS, WIDTH)
        code = codes_of(rows, mean, inverse, is_finite)
        offs_s = (first + tl.arange(0, ROWS)).to(tl.int64)
        ptrs = codes_ptr + offs_s[:, None] * nheads * headdim + offs_d[None, :]
        tl.store(ptrs, code.to(tl.float8e4nv, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["seqlen"])
def lse_shift(
    lse_ptr, q_ptr, mean_ptr, softmax_scale, stride_b, stride_s, stride_h, nheads, group_size,
    seqlen, headdim, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """lse (batch, nheads, seqlen) += softmax_scale * q . mean of the key head; -inf stays.

    Grid: (cdiv(seqlen, ROWS) * nheads * batch,). mean: float32 (batch, nheads_k, headdim).
    """
    blocks = tl.cdiv(seqlen, ROWS)
    pid = tl.program_id(0)
    first = pid % blocks * ROWS
    head = (pid // blocks % nheads).to(tl.int64)
    batch = (pid // blocks // nheads).to(tl.int64)
    q_ptr += batch * stride_b + head * stride_h
    rows, _ = load_rows(q_ptr, first, stride_s, seqlen, headdim, ROWS, WIDTH)
    offs_d = tl.arange(0, WIDTH)
    row_k = batch * (nheads // group_size) + head // group_size
    mean = tl.load(mean_ptr + row_k * headdim + offs_d, mask=offs_d < headdim, other=0.0)
    shift = tl.sum(rows * mean[None, :], 1) * softmax_scale
    offs_s = first + tl.arange(0, ROWS)
    ptrs = lse_ptr + (batch * nheads + head) * seqlen + offs_s
    lse = tl.load(ptrs, mask=offs_s < seqlen, other=0.0)
    tl.store(ptrs, tl.where(lse == float("-inf"), lse, lse + shift), mask=offs_s < seqlen)
