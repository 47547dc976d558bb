"""A kernel that hands shared memory over as the Hopper kernels do, rightly or not: what racecheck
must say of it. python -m tests.gpu.race_control ordered, or unordered."""

from __future__ import annotations

import sys

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tests.gpu.race_start import patch_triton

ROUNDS = 8
THREADS = 128
LANES = gl.constexpr(32)
_LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
_ONE_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [1], [0]))
_MEMORY = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def reads(memory, written, read, out_ptr, ROUNDS: gl.constexpr):
    total = gl.full([128], 0, gl.int32, _LAYOUT)
    for i in range(ROUNDS):
        mbarrier.wait(written, i & 1)
        total += gl.max(memory.slice(0, 1).load(_LAYOUT), 0)
        mbarrier.arrive(read)
    gl.store(out_ptr + gl.arange(0, 128, _LAYOUT), total)


@gluon.jit
def writes(memory, written, read, ROUNDS: gl.constexpr, ORDERED: gl.constexpr):
    for i in range(ROUNDS):
        mbarrier.wait(read, (i & 1) ^ 1)
        if not ORDERED:
            mbarrier.arrive(written)
        memory.store(gl.full([2 * LANES], 0, gl.int32, _ONE_WARP) + i)
        if ORDERED:
            mbarrier.arrive(written)


@gluon.jit
def control(out_ptr, ROUNDS: gl.constexpr, ORDERED: gl.constexpr):
    """One place in shared memory, written by a warp and read by four, ROUNDS times over; the sum of
    what was read in out, int32 (128,), if the writer writes before it arrives: ORDERED."""
    memory = gl.allocate_shared_memory(gl.int32, [2 * LANES], _MEMORY)
    written = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    read = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(written, count=1)
    mbarrier.init(read, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (reads, (memory, written, read, out_ptr, ROUNDS)),
            (writes, (memory, written, read, ROUNDS, ORDERED)),
        ],
        [1], [40],
    )  # fmt: skip


def main(order: str) -> None:
    patch_triton()
    is_ordered = {"ordered": True, "unordered": False}[order]
    out = torch.zeros(THREADS, dtype=torch.int32, device="cuda")
    control[(1,)](out, ROUNDS, is_ordered, num_warps=4)
    read = out.cpu()
    if is_ordered and not bool((read == sum(range(ROUNDS))).all()):
        raise SystemExit(f"the control computes {read.tolist()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
