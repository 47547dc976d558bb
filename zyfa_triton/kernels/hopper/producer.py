"""What the copying warp does: draws row tiles and fills the rings of Q, K and V for the others.

It computes nothing. Rows beyond a tensor's end arrive as zeros.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from zyfa_triton.kernels.hopper.compat import copy_tile, thread_barrier
from zyfa_triton.kernels.hopper.pair import next_tile, parts_of
from zyfa_triton.kernels.hopper.schedule import key_blocks, next_slot, tile_of
from zyfa_triton.kernels.hopper.values import place_of
from zyfa_triton.splice.marker import in_cluster

TILES = gl.constexpr(4)  # places for announced tiles
PAIRS = gl.constexpr(3)  # of numbers in an announcement, see `announce`
LANES = gl.constexpr(32)  # of the copying warp
TILE = gl.constexpr(128)  # keys of a tile of V^T, as `prepare` stores it
NO_TILE = gl.constexpr(-1)


@gluon.jit
def announcements():
    """Shared memory for announced tiles: (TILES * PAIRS, 2 * LANES)."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.int32, [TILES * PAIRS, 2 * LANES], layout)


@gluon.jit
def _tell(tiles, pair, first, second):
    """Each lane writes two numbers to a place of its own; that of the first one, which arrives for
    all, is read. With one place for all, or one number a lane (stmatrix), racecheck does not see
    who wrote.
    """
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    is_first = gl.arange(0, 2 * LANES, layout) % 2 == 0
    tiles.index(pair).store(gl.where(is_first, first, second))


@gluon.jit
def _told(tiles, pair, WHICH: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    return gl.max(tiles.index(pair).slice(WHICH, 1).load(layout), 0)


@gluon.jit
def announce(
    number, m_block, batch, first_head, scale_log2, v_scale, tiles, tile_full, tile_empty
):  # fmt: skip
    """Tells the consumers their next tile, the number-th that this workgroup takes: NO_TILE for
    m_block, or where it lies and by what its scores (in octaves) and its output are multiplied.

    Divisions and loads from memory are made once, here, and beforehand.
    """
    place = number % TILES
    mbarrier.wait(tile_empty.index(place), (number // TILES & 1) ^ 1)
    scale = scale_log2.to(gl.int32, bitcast=True)
    factor = v_scale.to(gl.int32, bitcast=True)
    _tell(tiles, place * PAIRS, m_block, scale)
    _tell(tiles, place * PAIRS + 1, batch, first_head)
    _tell(tiles, place * PAIRS + 2, factor, factor)
    thread_barrier()
    mbarrier.arrive(tile_full.index(place))


@gluon.jit
def announced(number, tiles, tile_full):
    """A consumer's side of `announce`: the tile's m_block and the scale of its scores.

    It arrives at tile_empty when it has used these numbers and those of `where_to`.
    """
    place = number % TILES
    mbarrier.wait(tile_full.index(place), number // TILES & 1)
    m_block = _told(tiles, place * PAIRS, 0)
    return m_block, _told(tiles, place * PAIRS, 1).to(gl.float32, bitcast=True)


@gluon.jit
def where_to(number, tiles):
    """What a consumer needs of an announcement to store: batch, first head, factor. Read again when
    it is needed, because registers are short before."""
    place = number % TILES
    batch = _told(tiles, place * PAIRS + 1, 0)
    first_head = _told(tiles, place * PAIRS + 1, 1)
    return batch, first_head, _told(tiles, place * PAIRS + 2, 0).to(gl.float32, bitcast=True)


@gluon.jit
def _times_descale(x, ptr, batch, head_k, stride_b, stride_h):
    if ptr is not None:
        at = batch.to(gl.int64) * stride_b + head_k.to(gl.int64) * stride_h
        x = x * gl.load(ptr + at)
    return x


@gluon.jit
def _copy_rows(
    first, rest, batch, head, row, barrier, to_first, to_rest, at, HEAD_DIM: gl.constexpr
):  # fmt: skip
    """Starts copying one tile of Q's rows: 128 columns and, where there are more, the rest."""
    copy_tile(first, [batch, head, row, 0], barrier, to_first.index(at))
    if HEAD_DIM > 128:
        copy_tile(rest, [batch, head, row, 0], barrier, to_rest.index(at))


@gluon.jit
def _copy_part(
    desc, batch, head, row, barrier, parts, slot, member,
    LOOP: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Starts copying this workgroup's rows of a tile of keys."""
    if CLUSTER > 1:
        in_cluster(LOOP, "copy")
    row += member * desc.block_shape[2]
    copy_tile(desc, [batch, head, row, 0], barrier, parts.index(slot * CLUSTER + member))


@gluon.jit
def produce(
    q_first, q_rest, k_first, k_rest, v, rings, barriers, from_other, tiles, counter_ptr,
    scales, order,
    IS_FP8: gl.constexpr, IS_CAUSAL: gl.constexpr, PACK: gl.constexpr, HEAD_DIM: gl.constexpr,
    HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, LOOP: gl.constexpr,
    CLUSTER: gl.constexpr,
):  # fmt: skip
    """The copying warp's program. Arguments: see `forward.hopper_attention_forward`.

    Block n of K and V lies in place n % STAGES. The consumers arrive at used[n % STAGES] when they
    are done with K's block n and V's block n - 1: one arrival a warp of each warpgroup, of each
    workgroup of the cluster.
    """
    q_full, q_empty, k_full, v_full, used, tile_full, tile_empty = barriers
    qs_first, qs_rest, ks_first, ks_rest, vs, _ = rings
    m_blocks, heads, heads_at_once, heads_a_batch, group_size, seqlen_q, seqlen_k = order
    (
        softmax_scale_log2, q_descale_ptr, k_descale_ptr, v_descale_ptr, stride_qdb, stride_qdh,
        stride_kdb, stride_kdh, stride_vdb, stride_vdh,
    ) = scales  # fmt: skip
    n_tiles = m_blocks * heads
    ROWS: gl.constexpr = 64 // PACK  # positions of one warpgroup
    ITEM: gl.constexpr = 1 if IS_FP8 else 2
    k_parts = parts_of(ks_first, k_first, STAGES, CLUSTER)
    k_rest_parts = k_parts
    if HEAD_DIM > 128:
        k_rest_parts = parts_of(ks_rest, k_rest, STAGES, CLUSTER)
    index = gl.program_id(0) // CLUSTER
    member = gl.program_id(0) % CLUSTER
    number = 0
    slot = 0
    phase = 1
    if CLUSTER > 1:
        in_cluster(LOOP, "begin")
    while index < n_tiles:
        row, head = tile_of(index, m_blocks, heads, heads_at_once)
        # in turns, because the later one of neighbours has more keys
        m_block = row * CLUSTER + (member + number) % CLUSTER
        batch = head // heads_a_batch
        first_head = (head - batch * heads_a_batch) * PACK
        head_k = first_head // group_size
        # in the contract's order: each product is rounded
        scale_log2 = _times_descale(
            softmax_scale_log2, q_descale_ptr, batch, head_k, stride_qdb, stride_qdh
        )
        scale_log2 = _times_descale(
            scale_log2, k_descale_ptr, batch, head_k, stride_kdb, stride_kdh
        )
        v_scale = _times_descale(1.0, v_descale_ptr, batch, head_k, stride_vdb, stride_vdh)
        for w in gl.static_range(2):
            mbarrier.wait(q_empty.index(w), (number & 1) ^ 1)
            mbarrier.expect(q_full.index(w), 64 * HEAD_DIM * ITEM)
            _copy_rows(
                q_first, q_rest, batch, first_head, (m_block * 2 + w) * ROWS, q_full.index(w),
                qs_first, qs_rest, w, HEAD_DIM,
            )  # fmt: skip
        upcoming = index
        blocks = key_blocks(row, seqlen_q, seqlen_k, CLUSTER * 2 * ROWS, BLOCK_N, IS_CAUSAL)
        for block in range(blocks):
            start_n = (blocks - 1 - block) * BLOCK_N
            # the place of K is free: V's before it has waited for that
            mbarrier.expect(k_full.index(slot), BLOCK_N * HEAD_DIM * ITEM)
            _copy_part(
                k_first, batch, head_k, start_n, k_full.index(slot), k_parts, slot, member,
                LOOP, CLUSTER,
            )  # fmt: skip
            if HEAD_DIM > 128:
                _copy_part(
                    k_rest, batch, head_k, start_n, k_full.index(slot), k_rest_parts, slot,
                    member, LOOP, CLUSTER,
                )  # fmt: skip
            if block == 0:  # what takes long comes behind the copies that can be started
                announce(
                    number, m_block, batch, first_head, scale_log2, v_scale, tiles, tile_full,
                    tile_empty,
                )  # fmt: skip
            next_place, next_phase = next_slot(slot, phase, STAGES)
            mbarrier.wait(used.index(next_place), next_phase)
            mbarrier.expect(v_full.index(slot), BLOCK_N * HEAD_DIM_V * ITEM)
            if IS_FP8:  # V^T, as the preparing pass left it
                place = place_of(vs, slot, v, member, HEAD_DIM_V, CLUSTER)
                first = member * v.block_shape[3]
                at = [batch, head_k, start_n // TILE, first, start_n % TILE]
                if CLUSTER > 1:
                    in_cluster(LOOP, "copy")
                copy_tile(v, at, v_full.index(slot), place)
            else:
                copy_tile(v, [batch, head_k, start_n, 0], v_full.index(slot), vs.index(slot))
            slot, phase = next_place, next_phase
            if block == 0:
                upcoming = next_tile(counter_ptr, number, from_other, LOOP, CLUSTER)
        index = upcoming
        number += 1
    announce(
        number, NO_TILE, 0, 0, softmax_scale_log2, softmax_scale_log2, tiles, tile_full, tile_empty
    )
