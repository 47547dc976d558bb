"""Where tiles of V lie in shared memory: for e4m3 with rows of ones behind each tile of V^T.

P times the ones is the row sum of rounded P. A matrix product may take a tile and its ones as one
matrix of HEAD_DIM_V + ONES rows.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

ONES = gl.constexpr(8)  # rows, as many as are swizzled together
_E4M3_ONE = gl.constexpr(0x38)


@gluon.jit
def values_with_ones(HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """Memory for tiles of V^T, in groups of ONES rows; the last group of each tile is written."""
    GROUPS: gl.constexpr = HEAD_DIM_V // ONES + 1
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(BLOCK_N, element_bitwidth=8, rank=2)
    vs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * GROUPS, ONES, BLOCK_N], LAYOUT)
    # written as bytes: a conversion of a constant stored wrong ones (Triton 3.6)
    BYTES: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    one = gl.full([ONES, BLOCK_N], _E4M3_ONE, gl.uint8, BYTES)
    for i in gl.static_range(STAGES):
        vs.index(i * GROUPS + GROUPS - 1).store(one.to(gl.float8e4nv, bitcast=True))
    return vs


@gluon.jit
def place_of(vs, slot, v, HEAD_DIM_V: gl.constexpr):
    """Where a tile of V^T of the descriptor v arrives."""
    GROUPS: gl.constexpr = HEAD_DIM_V // ONES + 1
    return vs.index(slot * GROUPS)._reinterpret(v.dtype, v.block_shape, v.layout)


@gluon.jit
def values(vs, slot, IS_FP8: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM_V: gl.constexpr):
    """V of one block, (BLOCK_N, HEAD_DIM_V)."""
    if IS_FP8:
        GROUPS: gl.constexpr = HEAD_DIM_V // ONES + 1
        LAYOUT: gl.constexpr = gl.NVMMASharedLayout(BLOCK_N, element_bitwidth=8, rank=2)
        tile = vs.index(slot * GROUPS)._reinterpret(gl.float8e4nv, [HEAD_DIM_V, BLOCK_N], LAYOUT)
        return tile.permute((1, 0))
    else:
        return vs.index(slot).reshape([BLOCK_N, HEAD_DIM_V])


@gluon.jit
def ones_of(vs, HEAD_DIM_V: gl.constexpr):
    """Ones (BLOCK_N, ONES): those behind the first tile."""
    return vs.index(HEAD_DIM_V // ONES).permute((1, 0))
