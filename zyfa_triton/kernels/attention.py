"""Decides the attention algorithm: one Triton forward kernel whose variants are constexprs.

This is the specification that other kernels (spliced, Gluon, HIP) replace and are compared with. It
does not choose a configuration and does not launch; see `zyfa_triton.kernels.launch`.

Settings: IS_FP8 (e4m3 inputs) with P_MODE "lean", "exact" or "unscaled"; BLOCK_SCALE (FP8 only, not
"unscaled"; needs BLOCK_N = 64, the block that one power of two covers). 16-bit inputs take the true
exponential.
"""

import triton
import triton.language as tl

from zyfa_triton.language import (
    EXACT_OCTAVES,
    as_e4m3,
    block_exponent,
    causal_mask,
    exact_probabilities,
    exponent_to_e8m0,
    finite_reference,
    key_mask,
    lean_codes,
    lean_codes_portable,
    lean_row_offset,
    masked_scores,
    rescale_factor,
    rounded_to_e4m3,
    row_sum,
    row_sum_scaled,
)
from zyfa_triton.splice.marker import marked_bound

LN_2 = tl.constexpr(0.6931471805599453)
HEAD_DIM_FIRST = tl.constexpr(128)  # 192 is no power of two: loaded as 128 + the rope part


@triton.jit
def _offset(index, stride, INDEX_64: tl.constexpr):
    """Elements from the first row; 64-bit where the tile's last row may lie beyond 2^31."""
    if INDEX_64:
        index = index.to(tl.int64)
    return index * stride


@triton.jit
def _stride_operand(stride, INDEX_64: tl.constexpr):
    """A row stride in elements for a loop in place of ours; int64 says that 32 bits do not do."""
    if INDEX_64:
        stride = stride + tl.full((), 0, tl.int64)
    return stride


@triton.jit
def _load_keys(
    ptr, start_n, stride, seqlen_k, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr,
    IS_MASKED: tl.constexpr, IS_TRANSPOSED: tl.constexpr, INDEX_64: tl.constexpr,
):  # fmt: skip
    """Rows start_n.. of K or V, WIDTH columns from FIRST: (BLOCK_N, WIDTH), or its transpose."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, WIDTH) + FIRST
    ptr += tl.cast(start_n, tl.int64) * stride
    if IS_TRANSPOSED:
        ptrs = ptr + (_offset(offs_n, stride, INDEX_64)[None, :] + offs_d[:, None])
        inside = (start_n + offs_n)[None, :] < seqlen_k
    else:
        ptrs = ptr + (_offset(offs_n, stride, INDEX_64)[:, None] + offs_d[None, :])
        inside = (start_n + offs_n)[:, None] < seqlen_k
    if IS_MASKED:
        return tl.load(ptrs, mask=inside, other=0.0)
    return tl.load(ptrs)


@triton.jit
def _load_queries(
    ptr, offs_m, stride, seqlen_q, FIRST: tl.constexpr, WIDTH: tl.constexpr, INDEX_64: tl.constexpr
):  # fmt: skip
    ptrs = ptr + (
        _offset(offs_m, stride, INDEX_64)[:, None] + (tl.arange(0, WIDTH) + FIRST)[None, :]
    )
    return tl.load(ptrs, mask=offs_m[:, None] < seqlen_q, other=0.0)


@triton.jit
def _probabilities(
    scores, block_max, reference, scale_log2, 
    P_MODE: tl.constexpr, IS_FP8: tl.constexpr, BLOCK_SCALE: tl.constexpr,
):  # fmt: skip
    """P of one tile before it meets V, and the block's exponent (0 without a block scale)."""
    exponent = tl.zeros_like(reference)
    if BLOCK_SCALE:
        exponent = block_exponent(block_max, reference, scale_log2)
    if IS_FP8 and P_MODE == "lean":
        row_offset = lean_row_offset(reference, exponent, scale_log2)
        if BLOCK_SCALE:
            p = as_e4m3(lean_codes(scores, scale_log2, row_offset))
        else:
            p = as_e4m3(lean_codes_portable(scores, scale_log2, row_offset))
    elif IS_FP8 and P_MODE == "exact":
        p = exact_probabilities(scores, scale_log2, reference, exponent, EXACT_OCTAVES)
        p = p.to(tl.float8e4nv) if BLOCK_SCALE else rounded_to_e4m3(p)
    else:
        p = exact_probabilities(scores, scale_log2, reference, exponent, 0.0)
    return p, exponent


@triton.jit
def _tile(
    q_first, q_rope, k_ptr, k_rope_ptr, v_ptr, stride_ks, stride_krs, stride_vs, start_n, offs_m,
    seqlen_q, seqlen_k, scale_log2, m_i, l_i, acc_o,
    IS_MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_FP8: tl.constexpr, P_MODE: tl.constexpr,
    BLOCK_SCALE: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    ROPE_FIRST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX_64: tl.constexpr,
):  # fmt: skip
    """One tile of keys: scores, probabilities, new row state (maximum, sum, accumulator)."""
    k = _load_keys(
        k_ptr, start_n, stride_ks, seqlen_k, 0, HEAD_DIM_FIRST, BLOCK_N, IS_MASKED, True, INDEX_64
    )
    acc_s = tl.dot(q_first, k)
    if HEAD_DIM > HEAD_DIM_FIRST:
        ROPE: tl.constexpr = HEAD_DIM - HEAD_DIM_FIRST
        k = _load_keys(
            k_rope_ptr, start_n, stride_krs, seqlen_k, ROPE_FIRST, ROPE, BLOCK_N,
            IS_MASKED, True, INDEX_64,
        )  # fmt: skip
        acc_s = tl.dot(q_rope, k, acc_s)
    if IS_MASKED:
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask = key_mask(offs_n, seqlen_k)
        if IS_CAUSAL:
            mask = mask & causal_mask(offs_m, offs_n, seqlen_q, seqlen_k)
        acc_s = masked_scores(acc_s, mask)

    block_max = tl.max(acc_s, 1)
    m_new = tl.maximum(m_i, block_max)
    reference = finite_reference(m_new)
    alpha = rescale_factor(m_i, reference, scale_log2)
    p, exponent = _probabilities(
        acc_s, block_max, reference, scale_log2, P_MODE, IS_FP8, BLOCK_SCALE
    )

    v = _load_keys(
        v_ptr, start_n, stride_vs, seqlen_k, 0, HEAD_DIM_V, BLOCK_N, IS_MASKED, False, INDEX_64
    )
    acc_o = acc_o * alpha[:, None]
    if BLOCK_SCALE:
        scale_bytes = exponent_to_e8m0(exponent, BLOCK_M, BLOCK_N)
        acc_o = tl.dot_scaled(p, scale_bytes, "e4m3", v, None, "e4m3", acc=acc_o)
        l_i = l_i * alpha + row_sum_scaled(p, scale_bytes, BLOCK_N)
    else:
        # "lean" and "exact" P is summed as rounded; "unscaled" and 16-bit P before rounding
        l_i = l_i * alpha + row_sum(p)
        acc_o = tl.dot(p.to(v.dtype), v, acc_o)
    return m_new, l_i, acc_o


@triton.jit
def _times_descale(x, ptr, batch, head_k, stride_b, stride_h):
    if ptr is not None:
        x = x * tl.load(ptr + batch * stride_b + head_k * stride_h)
    return x


@triton.jit
def _tile_range(
    m_block,
    seqlen_q,
    seqlen_k,
    IS_CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Keys [0, full_end) come in tiles that need no mask, [full_end, end) in tiles that do."""
    if IS_CAUSAL:
        shift = seqlen_k - seqlen_q
        first_row_sees = tl.minimum(tl.maximum(m_block * BLOCK_M + shift + 1, 0), seqlen_k)
        end = tl.minimum(tl.maximum((m_block + 1) * BLOCK_M + shift, 0), seqlen_k)
        return first_row_sees // BLOCK_N * BLOCK_N, end
    return seqlen_k // BLOCK_N * BLOCK_N, seqlen_k


@triton.jit(do_not_specialize=["seqlen_q", "seqlen_k"])
def attention_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_descale_ptr, k_descale_ptr, v_descale_ptr,
    softmax_scale_log2,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh,
    stride_vb, stride_vs, stride_vh, stride_ob, stride_os, stride_oh,
    stride_qdb, stride_qdh, stride_kdb, stride_kdh, stride_vdb, stride_vdh,
    nheads, group_size, seqlen_q, seqlen_k,
    q_rope_ptr, k_rope_ptr,
    stride_qrb, stride_qrs, stride_qrh, stride_krb, stride_krs, stride_krh,
    v_mean_ptr,
    IS_CAUSAL: tl.constexpr, IS_FP8: tl.constexpr, P_MODE: tl.constexpr, BLOCK_SCALE: tl.constexpr,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, INDEX_64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LOOP: tl.constexpr = "",
    HEADS_FASTEST: tl.constexpr = False,
):  # fmt: skip
    """O = softmax(softmax_scale * Q K^T) V for one (query tile, head, batch entry) a program.

    Grid: (cdiv(seqlen_q, BLOCK_M) * nheads * batch,): query tiles fastest, or heads if
    HEADS_FASTEST, batch entries slowest; the longest tile first when causal.
    Pointers are to (batch, seqlen, nheads, headdim) tensors with a unit last stride; strides count
    elements.
    q_rope_ptr, k_rope_ptr and their strides: columns of q and k from HEAD_DIM_FIRST on, where they
    are tensors of their own; None where they lie in q's and k's rows, or there are none.
    lse_ptr: float32 (batch, nheads, seqlen_q) contiguous, or None. Descales: float32 (batch,
    nheads_k) with strides, or None. v_mean_ptr: float32 (batch, nheads_k, HEAD_DIM_V)
    contiguous, added to rows that see a key, or None.
    softmax_scale_log2: softmax_scale * log2(e), float32. INDEX_64: offsets within one tile may pass
    2^31.
    LOOP: "" for the loops below, or what `zyfa_triton.splice.use` returned: one recipe that takes
    the place of both. Its inputs are listed where the mark is set.
    """
    tl.static_assert(
        not BLOCK_SCALE or BLOCK_N == 64, "one power of two covers 64 keys: BLOCK_N must be 64"
    )
    m_blocks = tl.cdiv(seqlen_q, BLOCK_M)
    pid = tl.program_id(0)
    if HEADS_FASTEST:
        head = pid % nheads
        m_block = (pid // nheads) % m_blocks
    else:
        head = (pid // m_blocks) % nheads
        m_block = pid % m_blocks
    if IS_CAUSAL:
        m_block = m_blocks - 1 - m_block
    batch = (pid // m_blocks // nheads).to(tl.int64)
    head_k = (head // group_size).to(tl.int64)

    scale_log2 = _times_descale(
        softmax_scale_log2, q_descale_ptr, batch, head_k, stride_qdb, stride_qdh
    )
    scale_log2 = _times_descale(scale_log2, k_descale_ptr, batch, head_k, stride_kdb, stride_kdh)
    row_0 = m_block * BLOCK_M
    q_ptr += batch * stride_qb + head.to(tl.int64) * stride_qh + row_0.to(tl.int64) * stride_qs
    k_ptr += batch * stride_kb + head_k * stride_kh
    v_ptr += batch * stride_vb + head_k * stride_vh
    if v_mean_ptr is not None:
        v_mean_ptr += (batch * (nheads // group_size) + head_k) * HEAD_DIM_V
    rows = tl.arange(0, BLOCK_M)
    offs_m = row_0 + rows
    q_first = _load_queries(q_ptr, rows, stride_qs, seqlen_q - row_0, 0, HEAD_DIM_FIRST, INDEX_64)
    q_rope = q_first
    ROPE_FIRST: tl.constexpr = HEAD_DIM_FIRST if k_rope_ptr is None else 0
    if k_rope_ptr is None:
        q_rope_ptr, k_rope_ptr = q_ptr, k_ptr
        stride_qrs, stride_krs = stride_qs, stride_ks
    else:
        q_rope_ptr += batch * stride_qrb + head.to(tl.int64) * stride_qrh
        q_rope_ptr += row_0.to(tl.int64) * stride_qrs
        k_rope_ptr += batch * stride_krb + head_k * stride_krh
    if HEAD_DIM > HEAD_DIM_FIRST:
        ROPE: tl.constexpr = HEAD_DIM - HEAD_DIM_FIRST
        q_rope = _load_queries(
            q_rope_ptr, rows, stride_qrs, seqlen_q - row_0, ROPE_FIRST, ROPE, INDEX_64
        )

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc_o = tl.zeros([BLOCK_M, HEAD_DIM_V], tl.float32)
    full_end, end = _tile_range(m_block, seqlen_q, seqlen_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    if LOOP != "":
        # k_ptr and v_ptr: first row of this head; q_ptr: first row of this query tile.
        inputs = (full_end, q_ptr, k_ptr, v_ptr,
            _stride_operand(stride_qs, INDEX_64), _stride_operand(stride_ks, INDEX_64),
            _stride_operand(stride_vs, INDEX_64), scale_log2, row_0, seqlen_q, seqlen_k,
        )  # fmt: skip
        if HEAD_DIM > HEAD_DIM_FIRST:
            rope_inputs = (q_rope_ptr + ROPE_FIRST, k_rope_ptr + ROPE_FIRST,
                _stride_operand(stride_qrs, INDEX_64), _stride_operand(stride_krs, INDEX_64),
            )  # fmt: skip
            end = marked_bound(LOOP, end, inputs + rope_inputs)
        else:
            end = marked_bound(LOOP, end, inputs)
    for start_n in range(0, full_end, BLOCK_N):
        m_i, l_i, acc_o = _tile(
            q_first, q_rope, k_ptr, k_rope_ptr, v_ptr, stride_ks, stride_krs, stride_vs, start_n,
            offs_m, seqlen_q, seqlen_k, scale_log2, m_i, l_i, acc_o, False, IS_CAUSAL, IS_FP8,
            P_MODE, BLOCK_SCALE, HEAD_DIM, HEAD_DIM_V, ROPE_FIRST, BLOCK_M, BLOCK_N,
            INDEX_64)  # fmt: skip
    for start_n in range(full_end, end, BLOCK_N):
        m_i, l_i, acc_o = _tile(
            q_first, q_rope, k_ptr, k_rope_ptr, v_ptr, stride_ks, stride_krs, stride_vs, start_n,
            offs_m, seqlen_q, seqlen_k, scale_log2, m_i, l_i, acc_o, True, IS_CAUSAL, IS_FP8,
            P_MODE, BLOCK_SCALE, HEAD_DIM, HEAD_DIM_V, ROPE_FIRST, BLOCK_M, BLOCK_N,
            INDEX_64)  # fmt: skip

    o_ptr += batch * stride_ob + head.to(tl.int64) * stride_oh + row_0.to(tl.int64) * stride_os
    if lse_ptr is not None:
        lse_ptr += (batch * nheads + head) * seqlen_q
    v_scale_at = (v_descale_ptr, batch, head_k, stride_vdb, stride_vdh)
    if v_mean_ptr is None:
        _store(o_ptr, lse_ptr, v_mean_ptr, v_scale_at, acc_o, m_i, l_i, scale_log2, rows, row_0,
            seqlen_q, stride_os, IS_FP8, P_MODE, BLOCK_M, HEAD_DIM_V, INDEX_64)  # fmt: skip
    elif row_0 < seqlen_q:  # always: in a block of its own nothing is computed before the loop and
        # kept, for which a generated loop leaves no registers
        _store(o_ptr, lse_ptr, v_mean_ptr, v_scale_at, acc_o, m_i, l_i, scale_log2, rows, row_0,
            seqlen_q, stride_os, IS_FP8, P_MODE, BLOCK_M, HEAD_DIM_V, INDEX_64)  # fmt: skip


@triton.jit
def _store(
    o_ptr, lse_ptr, v_mean_ptr, v_scale_at, acc_o, m_i, l_i, scale_log2, rows, row_0, seqlen_q,
    stride_os, IS_FP8: tl.constexpr, P_MODE: tl.constexpr, BLOCK_M: tl.constexpr,
    HEAD_DIM_V: tl.constexpr, INDEX_64: tl.constexpr,
):  # fmt: skip
    """Output rows and lse of the tile whose first row is row_0 of the head; o_ptr points to it,
    lse_ptr to the head's first, v_mean_ptr to the key head's row. rows: 0 to BLOCK_M - 1."""
    v_descale_ptr, batch, head_k, stride_vdb, stride_vdh = v_scale_at
    offs_m = row_0 + rows
    has_keys = l_i != 0  # NaN, from NaN inputs, counts as keys and is passed on
    inverse = tl.where(has_keys, 1.0 / tl.where(has_keys, l_i, 1.0), 0.0)
    inverse = _times_descale(inverse, v_descale_ptr, batch, head_k, stride_vdb, stride_vdh)
    o_ptrs = o_ptr + (
        _offset(rows, stride_os, INDEX_64)[:, None] + tl.arange(0, HEAD_DIM_V)[None, :]
    )
    inside = offs_m < seqlen_q
    if v_mean_ptr is None:
        out = acc_o * inverse[:, None]
    else:
        mean = tl.load(v_mean_ptr + tl.arange(0, HEAD_DIM_V))
        mean = tl.where(has_keys[:, None], mean[None, :], 0.0)
        out = tl.fma(acc_o, tl.broadcast_to(inverse[:, None], [BLOCK_M, HEAD_DIM_V]), mean)
    tl.store(o_ptrs, out.to(o_ptr.dtype.element_ty), mask=inside[:, None])
    if lse_ptr is not None:
        lse = _log_sum_exp(m_i, l_i, scale_log2, IS_FP8, P_MODE)
        tl.store(lse_ptr + offs_m, lse, mask=inside)


@triton.jit
def _log_sum_exp(m_i, l_i, scale_log2, IS_FP8: tl.constexpr, P_MODE: tl.constexpr):
    """Natural log of the row's sum of exponentials; -inf for a row without keys."""
    octaves_of_one: tl.constexpr = EXACT_OCTAVES if IS_FP8 and P_MODE == "exact" else 0.0
    has_keys = l_i != 0  # NaN, from NaN inputs, counts as keys and is passed on
    total = tl.where(has_keys, l_i, 1.0)
    if IS_FP8 and P_MODE == "lean":
        total = total * (1.0 / 448.0)
    octaves = tl.where(has_keys, m_i, 0.0) * scale_log2 + (tl.log2(total) - octaves_of_one)
    return tl.where(has_keys, octaves * LN_2, float("-inf"))
