"""Two small kernels of which it is known whether they race, for `races` to hold racecheck to.

python -m tests.gpu.race_controls right|wrong
"""

from __future__ import annotations

import sys

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from zyfa_triton.kernels.hopper.compat import thread_barrier

THREADS = 128
_LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
_MEMORY = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def writes(memory, written, out_ptr):
    memory.store(gl.arange(0, 128, _LAYOUT) + 1)
    thread_barrier()
    mbarrier.arrive(written)


@gluon.jit
def reads(memory, written, out_ptr, WAITS: gl.constexpr):
    if WAITS:
        mbarrier.wait(written, 0)
    gl.store(out_ptr + gl.arange(0, 128, _LAYOUT), memory.load(_LAYOUT))


@gluon.jit
def control(out_ptr, WAITS: gl.constexpr):
    """A partition writes and one thread of it arrives for all; the other reads, with WAITS once
    that has happened, which the memory model orders, and else at any time."""
    memory = gl.allocate_shared_memory(gl.int32, [128], _MEMORY)
    written = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(written, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [(writes, (memory, written, out_ptr)), (reads, (memory, written, out_ptr, WAITS))],
        [4], [40],
    )  # fmt: skip


def main() -> None:
    waits = {"right": True, "wrong": False}[sys.argv[1]]
    out = torch.zeros(THREADS, dtype=torch.int32, device="cuda")
    control[(1,)](out, waits, num_warps=4)
    if waits:
        assert out.tolist() == list(range(1, THREADS + 1))


if __name__ == "__main__":
    main()
