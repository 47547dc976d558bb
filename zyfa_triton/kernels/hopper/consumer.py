"""What a computing warpgroup does with its 64 rows of a tile: scores, probabilities, output.

Two of them share K and V and run independently, so that one's softmax lies beside the other's
matrix instructions. It decides the order of the instructions; the arithmetic is that of
`zyfa_triton.numerics`.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from zyfa_triton.kernels.hopper.mean import mean_of_head
from zyfa_triton.kernels.hopper.pair import blocks_of_other, give_back
from zyfa_triton.kernels.hopper.producer import TILES, announced, where_to
from zyfa_triton.kernels.hopper.schedule import key_blocks, next_slot
from zyfa_triton.kernels.hopper.softmax import (
    MULTIPLIER_UNIT,
    NO_KEY,
    masked,
    move_reference,
    operand,
    probabilities,
    rescaled,
    still_read,
)
from zyfa_triton.kernels.hopper.values import BEHIND, values
from zyfa_triton.splice.marker import handed, located, marked_bound

LN_2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def _start_scores(
    q_first, q_rest, ks_first, ks_rest, slot, zero, HEAD_DIM: gl.constexpr
):  # fmt: skip
    BLOCK_N: gl.constexpr = zero.shape[1]
    k = ks_first.index(slot).reshape([BLOCK_N, 128]).permute((1, 0))
    s = warpgroup_mma(q_first, k, zero, use_acc=False, is_async=True)
    if HEAD_DIM > 128:
        k = ks_rest.index(slot).reshape([BLOCK_N, HEAD_DIM - 128]).permute((1, 0))
        s = warpgroup_mma(q_rest, k, s, is_async=True)
    return s


@gluon.jit
def _next_block(
    q_first, q_rest, rings, barriers, slots, state, p, sums, alpha, last_key, first_last,
    multiplier, scale_log2, zero_s, zero_l,
    IS_MASKED: gl.constexpr, IS_FP8: gl.constexpr, P_MODE: gl.constexpr, HEAD_DIM: gl.constexpr,
    HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    OVERLAP: gl.constexpr, LOOP: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """P V of the block whose P is at hand, and beside it scores and P of the next one.

    The scores come first in the matrix unit, so that their softmax runs under the product.
    """
    _, _, k_full, v_full, used, _, _ = barriers
    _, _, ks_first, ks_rest, vs, ones = rings
    k_slot, k_phase, v_slot, v_phase = slots
    acc_o, acc_l, l_i, m_i = state
    O_LAYOUT: gl.constexpr = acc_o.type.layout
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 4 if IS_FP8 else 2)
    mbarrier.wait(k_full.index(k_slot), k_phase)
    s = _start_scores(q_first, q_rest, ks_first, ks_rest, k_slot, zero_s, HEAD_DIM)
    a = operand(p, IS_FP8, P_MODE, BLOCK_N, P_LAYOUT)
    if not OVERLAP:
        acc_o = rescaled(acc_o, gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT)), False)
    l_i = l_i * alpha + sums
    mbarrier.wait(v_full.index(v_slot), v_phase)
    v = values(vs, v_slot, IS_FP8, BLOCK_N, HEAD_DIM_V)
    acc_o = warpgroup_mma(a, v, acc_o, is_async=True)
    if IS_FP8:
        block_l = warpgroup_mma(a, ones.permute((1, 0)), zero_l, use_acc=False, is_async=True)
    if OVERLAP:  # acc_o is under way until it is rescaled, which waits
        s, acc_o = warpgroup_mma_wait(2 if IS_FP8 else 1, deps=[s, acc_o])
    else:
        s = warpgroup_mma_wait(2 if IS_FP8 else 1, deps=[s])
    if IS_MASKED:
        s = masked(s, first_last, last_key, BLOCK_N)
    m_i, offset, next_alpha = move_reference(
        gl.max(s, 1), m_i, multiplier, scale_log2, IS_FP8, P_MODE
    )
    next_p, sums = probabilities(s, offset, multiplier, IS_FP8, P_MODE, BLOCK_N)
    if OVERLAP:
        next_o_alpha = gl.convert_layout(next_alpha, gl.SliceLayout(1, O_LAYOUT))
        acc_o = rescaled(acc_o, next_o_alpha, True)
    else:
        acc_o = warpgroup_mma_wait(0, deps=[acc_o])
    if IS_FP8:
        block_l = warpgroup_mma_wait(0, deps=[block_l])
        l_alpha = gl.convert_layout(alpha, gl.SliceLayout(1, zero_l.type.layout))
        acc_l = gl.fma(acc_l, gl.expand_dims(l_alpha, 1) + zero_l, block_l)
    still_read(a)
    give_back(used, k_slot, LOOP, CLUSTER)
    k_slot, k_phase = next_slot(k_slot, k_phase, STAGES)
    v_slot, v_phase = next_slot(v_slot, v_phase, STAGES)
    slots = (k_slot, k_phase, v_slot, v_phase)
    return slots, (acc_o, acc_l, l_i, m_i), next_p, sums, next_alpha


@gluon.jit
def _store(
    acc_o, m_i, l_i, scale_log2, v_scale, outputs, batch, first_head, head, position, heads_q,
    seqlen_q, IS_FP8: gl.constexpr, P_MODE: gl.constexpr, HEAD_DIM_V: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Output rows and lse. head, position: of each row (64,), which share K and V with first_head.
    Rows without keys give 0, -inf."""
    o_ptr, lse_ptr, stride_ob, stride_os, stride_oh, parked = outputs
    has_keys = l_i != 0  # NaN, from NaN inputs, counts as keys and is passed on
    total = gl.where(has_keys, l_i, 1.0)
    inverse = gl.where(has_keys, gl.div_rn(gl.full_like(total, 1.0), total), 0.0) * v_scale
    inside = position < seqlen_q
    if parked is None:
        values = acc_o * gl.expand_dims(inverse, 1)
    else:
        mean = mean_of_head(parked, batch * heads_q + first_head, HEAD_DIM_V, LAYOUT)
        mean = gl.where(gl.expand_dims(has_keys, 1), gl.expand_dims(mean, 0), 0.0)
        values = gl.fma(acc_o, gl.expand_dims(inverse, 1) + gl.zeros_like(acc_o), mean)
    values = values.to(o_ptr.dtype.element_ty)
    # eight columns a lane, so that four lanes store 32: exchanged between them, not through memory
    STORED: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[64, HEAD_DIM_V],
    )  # fmt: skip
    values = gl.convert_layout(values, STORED)
    S_ROW: gl.constexpr = gl.SliceLayout(1, STORED)
    offset = (
        batch.to(gl.int64) * stride_ob + gl.convert_layout(head, S_ROW).to(gl.int64) * stride_oh
    )
    offset += gl.convert_layout(position, S_ROW).to(gl.int64) * stride_os
    columns = gl.arange(0, HEAD_DIM_V, gl.SliceLayout(0, STORED))
    pointers = gl.expand_dims(o_ptr + offset, 1) + gl.expand_dims(columns, 0)
    gl.store(pointers, values, mask=gl.expand_dims(gl.convert_layout(inside, S_ROW), 1))
    if lse_ptr is not None:
        octaves_of_one: gl.constexpr = 8.0 if IS_FP8 and P_MODE == "exact" else 0.0
        if IS_FP8 and P_MODE == "lean":
            total = total * (1.0 / 448.0)
        octaves = gl.where(has_keys, m_i, 0.0) * scale_log2 + (gl.log2(total) - octaves_of_one)
        lse = gl.where(has_keys, octaves * LN_2, float("-inf"))
        row = (batch.to(gl.int64) * heads_q + head) * seqlen_q + position
        gl.store(lse_ptr + row, lse, mask=inside)


@gluon.jit
def consume(
    w: gl.constexpr, rings, barriers, tiles, outputs, order,
    IS_FP8: gl.constexpr, P_MODE: gl.constexpr, IS_CAUSAL: gl.constexpr, PACK: gl.constexpr,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    OVERLAP: gl.constexpr, LOOP: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup's program, rows w * 64 on of each tile. Arguments: see `forward`."""
    q_full, q_empty, k_full, v_full, used, tile_full, tile_empty = barriers
    qs_first, qs_rest, ks_first, ks_rest, vs, ones = rings
    _, _, _, heads_a_batch, _, seqlen_q, seqlen_k = order
    ROWS: gl.constexpr = 64 // PACK  # positions of this warpgroup
    DEPTH: gl.constexpr = 32 if IS_FP8 else 16
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, DEPTH])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM_V, DEPTH])
    L_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, DEPTH])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 4 if IS_FP8 else 2)
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 4)
    ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROW: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    L_ROW: gl.constexpr = gl.SliceLayout(1, L_LAYOUT)
    zero_s = gl.full([64, BLOCK_N], 0.0, gl.float32, S_LAYOUT)
    zero_l = gl.full([64, 8], 0.0, gl.float32, L_LAYOUT)
    if LOOP != "":
        located(LOOP, "k_first", ks_first)
        if HEAD_DIM > 128:
            located(LOOP, "k_rest", ks_rest)
        located(LOOP, "values", vs)
        if not IS_FP8:
            located(LOOP, "q_first", qs_first)
            if HEAD_DIM > 128:
                located(LOOP, "q_rest", qs_rest)
        elif not BEHIND:
            located(LOOP, "ones", ones)
        located(LOOP, "k_full", k_full)
        located(LOOP, "v_full", v_full)
        located(LOOP, "used", used)
    rows = gl.arange(0, 64, ROW)
    number = 0
    k_slot = 0
    k_phase = 0
    v_slot = 0
    v_phase = 0
    m_block, scale_log2 = announced(number, tiles, tile_full)
    while m_block >= 0:
        multiplier = scale_log2
        if IS_FP8 and P_MODE == "lean":
            multiplier = scale_log2 * MULTIPLIER_UNIT
        blocks = key_blocks(m_block, seqlen_q, seqlen_k, 2 * ROWS, BLOCK_N, IS_CAUSAL)
        if CLUSTER > 1:
            if m_block * 2 * ROWS >= seqlen_q:  # there are only the other's rows
                blocks = 1
            for _ in range(
                blocks_of_other(
                    m_block, blocks, seqlen_q, seqlen_k, 2 * ROWS, BLOCK_N, IS_CAUSAL, CLUSTER
                )
            ):
                mbarrier.wait(k_full.index(k_slot), k_phase)
                give_back(used, k_slot, LOOP, CLUSTER)
                k_slot, k_phase = next_slot(k_slot, k_phase, STAGES)
                mbarrier.wait(v_full.index(v_slot), v_phase)
                v_slot, v_phase = next_slot(v_slot, v_phase, STAGES)
        position = (m_block * 2 + w) * ROWS + rows % ROWS
        first_last = seqlen_k - 1 - (blocks - 1) * BLOCK_N
        last_key = gl.zeros_like(position) + first_last
        if IS_CAUSAL:
            shift = seqlen_k - seqlen_q - (blocks - 1) * BLOCK_N
            first_last = gl.minimum(first_last, (m_block * 2 + w) * ROWS + shift)
            last_key = gl.minimum(last_key, position + shift)
        # blocks from the last one on of which some row does not see all keys, at least one
        masked_blocks = gl.minimum((BLOCK_N - 1 - first_last + BLOCK_N - 1) // BLOCK_N, blocks)
        masked_blocks = gl.maximum(masked_blocks, 1)

        m_i = gl.full([64], NO_KEY, gl.float32, ROW)
        l_i = gl.full([64], 0.0, gl.float32, ROW)
        acc_o = gl.full([64, HEAD_DIM_V], 0.0, gl.float32, O_LAYOUT)
        acc_l = zero_l
        mbarrier.wait(q_full.index(w), number & 1)
        if IS_FP8:
            q_first = qs_first.index(w).reshape([64, 128]).load(Q_LAYOUT)
            q_rest = q_first
            if HEAD_DIM > 128:
                q_rest = qs_rest.index(w).reshape([64, HEAD_DIM - 128]).load(Q_LAYOUT)
        else:
            q_first = qs_first.index(w).reshape([64, 128])
            q_rest = q_first
            if HEAD_DIM > 128:
                q_rest = qs_rest.index(w).reshape([64, HEAD_DIM - 128])
        mbarrier.wait(k_full.index(k_slot), k_phase)
        s = _start_scores(q_first, q_rest, ks_first, ks_rest, k_slot, zero_s, HEAD_DIM)
        s = warpgroup_mma_wait(0, deps=[s])
        # Only now: a barrier does not wait for loads from shared memory that are under way, and the
        # copies that follow an arrival do not wait for them either.
        if IS_FP8:
            mbarrier.arrive(q_empty.index(w))
        give_back(used, k_slot, LOOP, CLUSTER)
        k_slot, k_phase = next_slot(k_slot, k_phase, STAGES)
        s = masked(s, first_last, last_key, BLOCK_N)
        m_i, offset, alpha = move_reference(
            gl.max(s, 1), m_i, multiplier, scale_log2, IS_FP8, P_MODE
        )
        p, sums = probabilities(s, offset, multiplier, IS_FP8, P_MODE, BLOCK_N)
        slots = (k_slot, k_phase, v_slot, v_phase)
        state = (acc_o, acc_l, l_i, m_i)
        for _ in range(1, masked_blocks):
            first_last += BLOCK_N
            last_key += BLOCK_N
            slots, state, p, sums, alpha = _next_block(
                q_first, q_rest, rings, barriers, slots, state, p, sums, alpha, last_key,
                first_last, multiplier, scale_log2, zero_s, zero_l,
                True, IS_FP8, P_MODE, HEAD_DIM, HEAD_DIM_V, BLOCK_N, STAGES, OVERLAP, LOOP,
                CLUSTER,
            )  # fmt: skip
        # the code of masks lies outside this loop: it would crowd the instruction cache
        end = blocks
        if LOOP != "":
            if IS_FP8:
                handed(LOOP, "q_first", q_first)
                if HEAD_DIM > 128:
                    handed(LOOP, "q_rest", q_rest)
                end = marked_bound(LOOP, end, (multiplier, scale_log2))
            else:
                end = marked_bound(LOOP, end, (multiplier, w))
        for _ in range(masked_blocks, end):
            slots, state, p, sums, alpha = _next_block(
                q_first, q_rest, rings, barriers, slots, state, p, sums, alpha, last_key,
                first_last, multiplier, scale_log2, zero_s, zero_l,
                False, IS_FP8, P_MODE, HEAD_DIM, HEAD_DIM_V, BLOCK_N, STAGES, OVERLAP, LOOP,
                CLUSTER,
            )  # fmt: skip
        k_slot, k_phase, v_slot, v_phase = slots
        acc_o, acc_l, l_i, m_i = state
        if not IS_FP8:
            mbarrier.arrive(q_empty.index(w))
        a = operand(p, IS_FP8, P_MODE, BLOCK_N, P_LAYOUT)
        if not OVERLAP:
            acc_o = rescaled(acc_o, gl.convert_layout(alpha, O_ROW), False)
        mbarrier.wait(v_full.index(v_slot), v_phase)
        v = values(vs, v_slot, IS_FP8, BLOCK_N, HEAD_DIM_V)
        acc_o = warpgroup_mma(a, v, acc_o, is_async=True)
        if IS_FP8:
            block_l = warpgroup_mma(a, ones.permute((1, 0)), zero_l, use_acc=False, is_async=True)
            acc_o, block_l = warpgroup_mma_wait(0, deps=[acc_o, block_l])
            l_alpha = gl.expand_dims(gl.convert_layout(alpha, L_ROW), 1)
            # the eight columns are equal
            l_i = gl.convert_layout(gl.max(gl.fma(acc_l, l_alpha + zero_l, block_l), 1), ROW)
        else:
            l_i = l_i * alpha + sums
            acc_o = warpgroup_mma_wait(0, deps=[acc_o])
        v_slot, v_phase = next_slot(v_slot, v_phase, STAGES)
        # before the stores, which loads queue behind
        upcoming = announced(number + 1, tiles, tile_full)
        batch, first_head, v_scale = where_to(number, tiles)
        o_rows = gl.arange(0, 64, O_ROW)
        row_head = first_head + o_rows // ROWS
        row_position = (m_block * 2 + w) * ROWS + o_rows % ROWS
        _store(
            acc_o, gl.convert_layout(m_i, O_ROW), gl.convert_layout(l_i, O_ROW), scale_log2,
            v_scale, outputs, batch, first_head, row_head,
            row_position, heads_a_batch * PACK, seqlen_q,
            IS_FP8, P_MODE, HEAD_DIM_V, O_LAYOUT,
        )  # fmt: skip
        mbarrier.arrive(tile_empty.index(number % TILES))  # its numbers were used just now
        number += 1
        m_block, scale_log2 = upcoming
