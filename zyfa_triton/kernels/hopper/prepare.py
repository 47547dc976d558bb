"""How inputs become what the Hopper kernel reads: V^T with permuted keys, and codes where the
inputs have 16 bits.

An 8-bit wgmma wants B with the keys contiguous, and as A operand four keys of a row in a register,
while its accumulators hold columns 2t, 2t + 1 of each 8 there. So in each 16 keys place 4t + 2g + e
holds key 8g + 2t + e: then P's registers are the operand as they are. The order of keys changes no
sum but its rounding.

Codes, descales and means are bit for bit those of `zyfa_triton.quantize`; all tensors are read by
one launch for their largest magnitudes and by one for their codes, and K and V by one before for
their means.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zyfa_triton.kernels.quantize import (
    amax_of_rows,
    codes_of,
    load_rows,
    scale_of_amax,
    sum_of_chunk,
)

TILE = tl.constexpr(128)  # keys of a tile of V^T, which lies in one piece


@triton.jit
def key_of_place(place):
    """The key that a place holds."""
    inside = place % 16
    return place - inside + (inside >> 1 & 1) * 8 + (inside >> 2) * 2 + (inside & 1)


@triton.jit
def _store_transposed(t_ptr, values, first, ROWS: tl.constexpr, HEAD_DIM_V: tl.constexpr):
    """Bytes (ROWS, HEAD_DIM_V) of one head, places first on of a tile, to its tiles of V^T."""
    t_ptr += (first // TILE).to(tl.int64) * (HEAD_DIM_V * TILE)
    t_ptr += tl.multiple_of(first % TILE, 64)
    columns, places = tl.arange(0, HEAD_DIM_V), tl.arange(0, ROWS)
    tl.store(t_ptr + (columns[:, None] * TILE + places[None, :]), tl.trans(values))


@triton.jit(do_not_specialize=["nheads", "seqlen", "tiles"])
def transpose_values(
    v_ptr, t_ptr, counter_ptr, stride_b, stride_s, stride_h, nheads, seqlen, tiles,
    HEAD_DIM_V: tl.constexpr,
):  # fmt: skip
    """V as bytes (batch, seqlen, nheads, HEAD_DIM_V) -> (batch, nheads, tiles, HEAD_DIM_V, TILE).

    Grid: (tiles * nheads * batch,). Keys from seqlen on are zero. Also zeroes the counter that the
    attention kernel draws from.
    """
    pid = tl.program_id(0)
    if pid == 0:
        tl.store(counter_ptr, 0)
    first = pid % tiles * TILE
    head = (pid // tiles % nheads).to(tl.int64)
    batch = (pid // tiles // nheads).to(tl.int64)
    places = first + tl.arange(0, TILE)
    keys = key_of_place(places)
    columns = tl.arange(0, HEAD_DIM_V)
    v_ptr += batch * stride_b + head * stride_h
    pointers = v_ptr + keys.to(tl.int64)[:, None] * stride_s + columns[None, :]
    values = tl.load(pointers, mask=keys[:, None] < seqlen, other=0)
    t_ptr += (batch * nheads + head) * tiles * (HEAD_DIM_V * TILE)
    _store_transposed(t_ptr, values, first, TILE, HEAD_DIM_V)


@triton.jit
def _largest(
    x_ptr, sums_ptr, mean_ptr, amax_ptr, pid, stride_b, stride_s, stride_h, nheads, heads_a_scale,
    seqlen, headdim, chunks, HAS_MEAN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The largest |x - mean| of one chunk of rows into its scale's entry, as the bits of a float32.

    Such bits are ordered like the floats, so that the result does not depend on who comes first.
    """
    blocks = tl.cdiv(seqlen, CHUNK)
    block = pid % blocks
    head = (pid // blocks % nheads).to(tl.int64)
    batch = (pid // blocks // nheads).to(tl.int64)
    row = batch * nheads + head
    x_ptr += batch * stride_b + head * stride_h
    amax = amax_of_rows(
        x_ptr, sums_ptr, mean_ptr, row, block, chunks, stride_s, seqlen, headdim,
        HAS_MEAN, CHUNK, ROWS, WIDTH,
    )  # fmt: skip
    tl.atomic_max(amax_ptr + row // heads_a_scale, amax.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def _scale(amax_ptr, descale_ptr, row, block, heads_a_scale):
    """Inverse of the scale of one (batch entry, head); the first program of a scale stores it."""
    index = row // heads_a_scale
    amax = tl.load(amax_ptr + index).to(tl.float32, bitcast=True)
    descale, inverse, is_finite = scale_of_amax(amax)
    if (block == 0) & (row == index * heads_a_scale):
        tl.store(descale_ptr + index, descale)
    return inverse, is_finite


@triton.jit
def _codes_of_rows(
    x_ptr, mean_ptr, amax_ptr, codes_ptr, descale_ptr, pid, stride_b, stride_s, stride_h, nheads,
    heads_a_scale, seqlen, headdim,
    HAS_MEAN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Codes of ROWS rows of Q or K, (batch, seqlen, nheads, headdim) contiguous, and descales."""
    blocks = tl.cdiv(seqlen, ROWS)
    block = pid % blocks
    head = (pid // blocks % nheads).to(tl.int64)
    batch = (pid // blocks // nheads).to(tl.int64)
    row = batch * nheads + head
    inverse, is_finite = _scale(amax_ptr, descale_ptr, row, block, heads_a_scale)
    offs_d = tl.arange(0, WIDTH)
    mean = tl.zeros([WIDTH], tl.float32)
    if HAS_MEAN:
        mean = tl.load(mean_ptr + row * headdim + offs_d, mask=offs_d < headdim, other=0.0)
    x_ptr += batch * stride_b + head * stride_h
    first = block * ROWS
    rows, inside = load_rows(x_ptr, first, stride_s, seqlen, headdim, ROWS, WIDTH)
    codes_ptr += (batch * seqlen * nheads + head) * headdim
    offs_s = (first + tl.arange(0, ROWS)).to(tl.int64)
    pointers = codes_ptr + offs_s[:, None] * nheads * headdim + offs_d[None, :]
    tl.store(pointers, codes_of(rows, mean, inverse, is_finite), mask=inside)


@triton.jit
def _codes_of_values(
    v_ptr, mean_ptr, amax_ptr, t_ptr, descale_ptr, pid, stride_b, stride_s, stride_h, nheads,
    heads_a_scale, seqlen, tiles,
    HAS_MEAN: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM_V: tl.constexpr,
):  # fmt: skip
    """Codes of ROWS rows of V, transposed and with the keys permuted, and descales."""
    blocks = tiles * (TILE // ROWS)
    block = pid % blocks
    head = (pid // blocks % nheads).to(tl.int64)
    batch = (pid // blocks // nheads).to(tl.int64)
    row = batch * nheads + head
    inverse, is_finite = _scale(amax_ptr, descale_ptr, row, block, heads_a_scale)
    first = block * ROWS
    places = first + tl.arange(0, ROWS)
    keys = key_of_place(places)
    columns = tl.arange(0, HEAD_DIM_V)
    mean = tl.zeros([HEAD_DIM_V], tl.float32)
    if HAS_MEAN:
        mean = tl.load(mean_ptr + row * HEAD_DIM_V + columns)
    v_ptr += batch * stride_b + head * stride_h
    pointers = v_ptr + keys.to(tl.int64)[:, None] * stride_s + columns[None, :]
    inside = keys[:, None] < seqlen
    rows = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    codes = codes_of(rows, mean, inverse, is_finite)
    codes = tl.where(inside, codes, 0).to(tl.uint8)  # not NaN, nor the mean's
    t_ptr += row * tiles * (HEAD_DIM_V * TILE)
    _store_transposed(t_ptr, codes, first, ROWS, HEAD_DIM_V)


_LENGTHS = [
    "nheads", "nheads_k", "q_heads_a_scale", "k_heads_a_scale", "seqlen_q", "seqlen_k", "chunks",
    "tiles", "q_programs", "k_programs",
]  # fmt: skip


@triton.jit(do_not_specialize=_LENGTHS)
def partial_sums_of_both(
    k_ptr, v_ptr, k_sums_ptr, v_sums_ptr, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, nheads_k, seqlen_k, chunks, k_programs,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """`partial_sums` of k and of v.

    Grid: 2 * k_programs, k_programs = chunks * heads * batch, for k, then v.
    """
    pid = tl.program_id(0)
    if pid < k_programs:
        sum_of_chunk(
            k_ptr, k_sums_ptr, pid, stride_kb, stride_ks, stride_kh, nheads_k, seqlen_k, HEAD_DIM,
            chunks, CHUNK, ROWS, WIDTH,
        )  # fmt: skip
    else:
        sum_of_chunk(
            v_ptr, v_sums_ptr, pid - k_programs, stride_vb, stride_vs, stride_vh, nheads_k,
            seqlen_k, HEAD_DIM_V, chunks, CHUNK, ROWS, HEAD_DIM_V,
        )  # fmt: skip


@triton.jit(do_not_specialize=_LENGTHS)
def largest_magnitudes(
    q_ptr, k_ptr, v_ptr, k_sums_ptr, v_sums_ptr, k_mean_ptr, v_mean_ptr, q_amax_ptr, k_amax_ptr,
    v_amax_ptr, stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb,
    stride_vs, stride_vh, nheads, nheads_k, q_heads_a_scale, k_heads_a_scale, seqlen_q, seqlen_k,
    chunks, q_programs, k_programs,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, HAS_K_MEAN: tl.constexpr,
    HAS_V_MEAN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Largest magnitudes by scale, bits of float32 in int32 that were zero.

    Grid: cdiv(seqlen, CHUNK) * heads * batch for q, then k, then v; q_programs and k_programs are
    the first two counts. With HAS_K_MEAN the mean of K (k_sums_ptr: its sums by `chunks`, see
    `partial_sums`) is taken off first and stored, with HAS_V_MEAN that of V.
    """
    pid = tl.program_id(0)
    if pid < q_programs:
        _largest(
            q_ptr, k_sums_ptr, k_mean_ptr, q_amax_ptr, pid, stride_qb, stride_qs, stride_qh, nheads,
            q_heads_a_scale, seqlen_q, HEAD_DIM, chunks, False, CHUNK, ROWS, WIDTH,
        )  # fmt: skip
    elif pid < q_programs + k_programs:
        _largest(
            k_ptr, k_sums_ptr, k_mean_ptr, k_amax_ptr, pid - q_programs, stride_kb, stride_ks,
            stride_kh, nheads_k, k_heads_a_scale, seqlen_k, HEAD_DIM, chunks, HAS_K_MEAN, CHUNK,
            ROWS, WIDTH,
        )  # fmt: skip
    else:
        _largest(
            v_ptr, v_sums_ptr, v_mean_ptr, v_amax_ptr, pid - q_programs - k_programs, stride_vb,
            stride_vs, stride_vh, nheads_k, k_heads_a_scale, seqlen_k, HEAD_DIM_V, chunks,
            HAS_V_MEAN, CHUNK, ROWS, HEAD_DIM_V,
        )  # fmt: skip


@triton.jit(do_not_specialize=_LENGTHS)
def quantise_inputs(
    q_ptr, k_ptr, v_ptr, k_mean_ptr, v_mean_ptr, q_amax_ptr, k_amax_ptr, v_amax_ptr, q_codes_ptr,
    k_codes_ptr, t_ptr, q_descale_ptr, k_descale_ptr, v_descale_ptr,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, nheads, nheads_k, q_heads_a_scale, k_heads_a_scale, seqlen_q, seqlen_k, tiles,
    q_programs, k_programs,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, HAS_K_MEAN: tl.constexpr,
    HAS_V_MEAN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Codes of q and k as bytes (batch, seqlen, heads, HEAD_DIM), V^T, and the descales.

    Grid: cdiv(seqlen, ROWS) * heads * batch for q, then k, then v (tiles * TILE
    keys).
    """
    pid = tl.program_id(0)
    if pid < q_programs:
        _codes_of_rows(
            q_ptr, k_mean_ptr, q_amax_ptr, q_codes_ptr, q_descale_ptr, pid, stride_qb, stride_qs,
            stride_qh, nheads, q_heads_a_scale, seqlen_q, HEAD_DIM, False, ROWS, WIDTH,
        )  # fmt: skip
    elif pid < q_programs + k_programs:
        _codes_of_rows(
            k_ptr, k_mean_ptr, k_amax_ptr, k_codes_ptr, k_descale_ptr, pid - q_programs, stride_kb,
            stride_ks, stride_kh, nheads_k, k_heads_a_scale, seqlen_k, HEAD_DIM, HAS_K_MEAN, ROWS,
            WIDTH,
        )  # fmt: skip
    else:
        _codes_of_values(
            v_ptr, v_mean_ptr, v_amax_ptr, t_ptr, v_descale_ptr, pid - q_programs - k_programs,
            stride_vb, stride_vs, stride_vh, nheads_k, k_heads_a_scale, seqlen_k, tiles, HAS_V_MEAN,
            ROWS, HEAD_DIM_V,
        )  # fmt: skip
