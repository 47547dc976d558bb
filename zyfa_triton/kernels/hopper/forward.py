"""The attention kernel for Hopper: shared memory, barriers, and which warps do what.

One persistent workgroup a multiprocessor: two computing warpgroups (`consumer`) and a copying warp
(`producer`). It does not launch (`launch`).
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from zyfa_triton.kernels.hopper.consumer import consume
from zyfa_triton.kernels.hopper.mean import parked_mean
from zyfa_triton.kernels.hopper.pair import MAIL, WARPS, leave
from zyfa_triton.kernels.hopper.producer import TILES, announcements, produce
from zyfa_triton.kernels.hopper.values import values_and_ones
from zyfa_triton.splice.marker import in_cluster

_UNSPECIALIZED = [
    "stride_qdb", "stride_qdh", "stride_kdb", "stride_kdh", "stride_vdb", "stride_vdh",
    "m_blocks", "heads", "heads_at_once", "heads_a_batch", "group_size", "seqlen_q", "seqlen_k",
]  # fmt: skip


@gluon.jit
def _ring(desc, PLACES: gl.constexpr):
    """Shared memory for tiles of a descriptor."""
    shape: gl.constexpr = [PLACES] + desc.block_shape  # noqa: RUF005 - Gluon knows no unpacking
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def _key_ring(desc, PLACES: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for whole tiles of K or V, of which a descriptor may copy parts."""
    return gl.allocate_shared_memory(desc.dtype, [PLACES, 1, 1, BLOCK_N, COLUMNS], desc.layout)


@gluon.jit
def _barriers(PLACES: gl.constexpr, ARRIVALS: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(PLACES):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit(do_not_specialize=_UNSPECIALIZED)
def hopper_attention_forward(
    q_first, q_rest, k_first, k_rest, v, o_ptr, lse_ptr, q_descale_ptr, k_descale_ptr,
    v_descale_ptr, counter_ptr, softmax_scale_log2,
    stride_ob, stride_os, stride_oh, stride_qdb, stride_qdh, stride_kdb, stride_kdh, stride_vdb,
    stride_vdh, m_blocks, heads, heads_at_once, heads_a_batch, group_size, seqlen_q,
    seqlen_k, v_mean_ptr,
    IS_FP8: gl.constexpr, P_MODE: gl.constexpr, IS_CAUSAL: gl.constexpr, PACK: gl.constexpr,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    OVERLAP: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
    LOOP: gl.constexpr = "", CLUSTER: gl.constexpr = 1,
):  # fmt: skip
    """O = softmax(softmax_scale * Q K^T) V; P as in `numerics` without a scaled matrix product.

    Grid: as many workgroups as run at once, at most CLUSTER for so many row tiles of a head.
    q_first, q_rest, k_first, k_rest: descriptors of (batch, heads, seqlen, columns) tensors, whose
    tiles hold the first 128 columns and, for HEAD_DIM 192, the other 64 (else None). A tile of q
    holds PACK heads with 64 // PACK positions each, which share K and V. v: (batch, nheads_k,
    seqlen_k, HEAD_DIM_V); for e4m3 its transpose with the keys permuted (`prepare`).
    o_ptr: (batch, seqlen_q, nheads, HEAD_DIM_V), unit last stride; other strides count elements.
    lse_ptr: float32 (batch, nheads, seqlen_q) contiguous, or None. Descales: float32 (batch,
    nheads_k) with strides, or None. v_mean_ptr: float32 (batch, nheads_k, HEAD_DIM_V) contiguous
    at a multiple of 16 bytes, added to rows that see a key, or None. counter_ptr: int32, zero; more
    follow it with a CLUSTER.
    OVERLAP: the softmax of a block lies beside P V of the one before, see `ptx.rescaled`.
    LOOP: "" for the loop of `consumer` over blocks that need no mask, or what
    `zyfa_triton.splice.use` returned: a recipe that takes its place. CLUSTER: workgroups that share
    K and V, the recipe's; descriptors of K and V then hold one part of so many of a tile.
    softmax_scale_log2: softmax_scale * log2(e). heads: batch * nheads / PACK, heads_a_batch: nheads
    / PACK; m_blocks: row tiles of a head, CLUSTER of them counted as one. counter_ptr: see `pair`.
    """
    qs_first = _ring(q_first, 2)
    ks_first = _key_ring(k_first, STAGES, BLOCK_N, 128)
    if HEAD_DIM > 128:
        qs_rest = _ring(q_rest, 2)
        ks_rest = _key_ring(k_rest, STAGES, BLOCK_N, HEAD_DIM - 128)
    else:
        qs_rest = qs_first
        ks_rest = ks_first
    if IS_FP8:
        vs, ones = values_and_ones(HEAD_DIM_V, BLOCK_N, STAGES)
    else:
        vs = _key_ring(v, STAGES, BLOCK_N, HEAD_DIM_V)
        ones = vs  # not used
    rings = (qs_first, qs_rest, ks_first, ks_rest, vs, ones)
    tiles = announcements()
    barriers = (
        _barriers(2, 1), _barriers(2, 1), _barriers(STAGES, 1), _barriers(STAGES, 1),
        _barriers(STAGES, CLUSTER * 2 * WARPS), _barriers(TILES, 1), _barriers(TILES, 2),
    )  # fmt: skip
    # what the other workgroup arrives at
    from_other = (_barriers(MAIL, 1), _barriers(1, 1)) if CLUSTER > 1 else ()
    fence_async_shared()
    if CLUSTER > 1:
        in_cluster(LOOP, "ready")
    order = (m_blocks, heads, heads_at_once, heads_a_batch, group_size, seqlen_q, seqlen_k)
    if v_mean_ptr is None:
        outputs = (o_ptr, lse_ptr, stride_ob, stride_os, stride_oh, v_mean_ptr)
    else:
        parked = parked_mean(v_mean_ptr, group_size)
        outputs = (o_ptr, lse_ptr, stride_ob, stride_os, stride_oh, parked)
    scales = (
        softmax_scale_log2, q_descale_ptr, k_descale_ptr, v_descale_ptr, stride_qdb, stride_qdh,
        stride_kdb, stride_kdh, stride_vdb, stride_vdh,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (consume, (0, rings, barriers, tiles, outputs, order, IS_FP8, P_MODE,
                       IS_CAUSAL, PACK, HEAD_DIM, HEAD_DIM_V, BLOCK_N, STAGES, OVERLAP, LOOP,
                       CLUSTER)),
            (consume, (1, rings, barriers, tiles, outputs, order, IS_FP8, P_MODE,
                       IS_CAUSAL, PACK, HEAD_DIM, HEAD_DIM_V, BLOCK_N, STAGES, OVERLAP, LOOP,
                       CLUSTER)),
            (produce, (q_first, q_rest, k_first, k_rest, v, rings, barriers, from_other, tiles,
                       counter_ptr, scales, order, IS_FP8, IS_CAUSAL, PACK, HEAD_DIM, HEAD_DIM_V,
                       BLOCK_N, STAGES, LOOP, CLUSTER)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
    if CLUSTER > 1:
        leave(from_other, LOOP)
