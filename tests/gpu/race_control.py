"""The smallest kernel that hands shared memory over as the Hopper kernels do, which `races` holds
racecheck to: python -m tests.gpu.race_control. Fails unless the results are right."""

from __future__ import annotations

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

ROUNDS = 8
THREADS = 128
_LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
_ONE_WARP = gl.constexpr(gl.BlockedLayout([4], [32], [1], [0]))
_MEMORY = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def reads(memory, written, read, out_ptr, ROUNDS: gl.constexpr):
    total = gl.full([128], 0, gl.int32, _LAYOUT)
    for i in range(ROUNDS):
        mbarrier.wait(written, i & 1)
        total += memory.load(_LAYOUT)
        mbarrier.arrive(read)
    gl.store(out_ptr + gl.arange(0, 128, _LAYOUT), total)


@gluon.jit
def writes(memory, written, read, ROUNDS: gl.constexpr):
    for i in range(ROUNDS):
        mbarrier.wait(read, (i & 1) ^ 1)
        memory.store(gl.arange(0, 128, _ONE_WARP) + i)
        mbarrier.arrive(written)


@gluon.jit
def control(out_ptr, ROUNDS: gl.constexpr):
    """One place in shared memory, written by a warp and read by four, ROUNDS times over. A barrier
    stands before each arrival, which one thread makes for all of its partition."""
    memory = gl.allocate_shared_memory(gl.int32, [128], _MEMORY)
    written = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    read = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(written, count=1)
    mbarrier.init(read, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (reads, (memory, written, read, out_ptr, ROUNDS)),
            (writes, (memory, written, read, ROUNDS)),
        ],
        [1], [40],
    )  # fmt: skip


def main() -> None:
    out = torch.zeros(THREADS, dtype=torch.int32, device="cuda")
    control[(1,)](out, ROUNDS, num_warps=4)
    expected = ROUNDS * torch.arange(THREADS) + sum(range(ROUNDS))
    if not torch.equal(out.cpu(), expected.int()):
        raise SystemExit(f"the control computes {out.tolist()}")


if __name__ == "__main__":
    main()
