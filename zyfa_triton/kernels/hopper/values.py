"""Where tiles of V lie in shared memory, and the ones whose product with P is its row sum.

For e4m3 the ones stand behind each tile of V^T, where Triton lets a view be made of both, so that a
generated loop takes a tile and its ones as one matrix of HEAD_DIM_V + ONES rows: the row sum then
costs a quarter of what a product of its own does. Else there is one piece of ones apart.
"""

from __future__ import annotations

import triton
import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from zyfa_triton.kernels.hopper.compat import as_tile

ONES = gl.constexpr(8)  # rows, as many as are swizzled together
BEHIND = gl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7))
"""Whether ones stand behind each tile: later Tritons refuse a view beyond the piece it is of."""
_E4M3_ONE = gl.constexpr(0x38)


@gluon.jit
def values_and_ones(HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """Memory for e4m3 tiles of V^T, and ones, which are written."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(BLOCK_N, element_bitwidth=8, rank=2)
    # written as bytes: a conversion of a constant stored wrong ones (Triton 3.6)
    BYTES: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    one = gl.full([ONES, BLOCK_N], _E4M3_ONE, gl.uint8, BYTES).to(gl.float8e4nv, bitcast=True)
    if BEHIND:
        GROUPS: gl.constexpr = HEAD_DIM_V // ONES + 1
        vs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * GROUPS, ONES, BLOCK_N], LAYOUT)
        for i in gl.static_range(STAGES):
            vs.index(i * GROUPS + GROUPS - 1).store(one)
        return vs, vs.index(GROUPS - 1)
    else:
        vs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, HEAD_DIM_V, BLOCK_N], LAYOUT)
        ones = gl.allocate_shared_memory(gl.float8e4nv, [ONES, BLOCK_N], LAYOUT)
        ones.store(one)
        return vs, ones


@gluon.jit
def place_of(vs, slot, v, member, HEAD_DIM_V: gl.constexpr, CLUSTER: gl.constexpr):
    """Where an e4m3 part of a tile arrives that is copied by the descriptor v, the member-th of
    CLUSTER parts."""
    if BEHIND:
        first = vs.index(slot * (HEAD_DIM_V // ONES + 1) + member * (HEAD_DIM_V // CLUSTER // ONES))
        return as_tile(first, v.dtype, v.block_shape, v.layout)
    else:
        STAGES: gl.constexpr = vs.shape[0]
        parts = as_tile(vs, v.dtype, [CLUSTER * STAGES] + v.block_shape, v.layout)  # noqa: RUF005
        return parts.index(slot * CLUSTER + member)


@gluon.jit
def values(vs, slot, IS_FP8: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM_V: gl.constexpr):
    """V of one block, (BLOCK_N, HEAD_DIM_V)."""
    if IS_FP8 and BEHIND:
        LAYOUT: gl.constexpr = gl.NVMMASharedLayout(BLOCK_N, element_bitwidth=8, rank=2)
        first = vs.index(slot * (HEAD_DIM_V // ONES + 1))
        return as_tile(first, gl.float8e4nv, [HEAD_DIM_V, BLOCK_N], LAYOUT).permute((1, 0))
    elif IS_FP8:
        return vs.index(slot).permute((1, 0))
    else:
        return vs.index(slot).reshape([BLOCK_N, HEAD_DIM_V])
