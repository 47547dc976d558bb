"""Makes racecheck see what orders the start of a kernel's partitions.

Triton's `warp_specialize` tells waiting warps by bytes in shared memory what to run: the first four
warps write them, all meet at barrier 1, the others read. racecheck (2025.3) reports that the two
race, in right kernels too (`race_control`). It is silent once the writers have met at a barrier of
their own in front of that one. Such a barrier orders nothing that the one behind it, where all
threads meet, does not; no other instruction is changed.
"""

from __future__ import annotations

import re

# what tells the others, and nothing but line numbers before all meet
_TOLD = re.compile(
    r"^\tst\.shared\.\S+ *\t\[global_smem[^\n]*\n"
    r"(?=(?:\t\.loc\s[^\n]*\n|\$L__tmp\d+:\n)*\tbarrier\.sync \t1;)",
    re.MULTILINE,
)
_WRITERS_MEET = "\tbar.sync \t0, 128;\n"


def patch_triton() -> None:
    """Every kernel that this process compiles has that barrier."""
    from triton.backends.nvidia.compiler import CUDABackend

    compiled = CUDABackend.make_ptx

    def make_ptx(self: object, *args: object, **options: object) -> str:
        return writers_meet(compiled(self, *args, **options))

    CUDABackend.make_ptx = make_ptx


def writers_meet(ptx: str) -> str:
    """A kernel's text with the barrier; as it is if it has no partitions.

    Raises ValueError where partitions are told in another way than this knows.
    """
    changed, count = _TOLD.subn(lambda told: told[0] + _WRITERS_MEET, ptx)
    has_partitions = "setmaxnreg" in ptx
    if has_partitions != (count == 2):  # their start, and their end
        raise ValueError(f"partitions: {has_partitions}, but they are told {count} times")
    return changed
