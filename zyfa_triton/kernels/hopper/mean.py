"""How V's mean, taken off its codes, reaches the outputs: parked in shared memory until a tile is
stored."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def parked_mean(v_mean_ptr, group_size):
    """Where V's mean lies and how many query heads share one, in shared memory: consumers need it
    once a tile, and have no registers for it before."""
    parked = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    zero = gl.full([1], 0, gl.int64, LAYOUT)
    parked.index(0).store(zero + v_mean_ptr.to(gl.int64))
    parked.index(1).store(zero + group_size)
    return parked


@gluon.jit
def mean_of_head(parked, head, HEAD_DIM_V: gl.constexpr, LAYOUT: gl.constexpr):
    """What was taken off V of a query head, counted over the batch: (HEAD_DIM_V,), columns of
    LAYOUT."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    address = gl.max(parked.index(0).load(ONE), 0)
    row = head // gl.max(parked.index(1).load(ONE), 0).to(gl.int32)
    address += row.to(gl.int64) * (4 * HEAD_DIM_V)
    pointer = gl.multiple_of(address.to(gl.pointer_type(gl.float32)), 16)
    return gl.load(pointer + gl.arange(0, HEAD_DIM_V, gl.SliceLayout(0, LAYOUT)))
