"""Matrix products of a warpgroup (wgmma) on e4m3, and descriptors of their tiles in shared memory.

A's 64 rows come from registers, B from shared memory with K contiguous; the result is float32 in
registers. Register i of a result is row g + 8 * (i >> 1 & 1), column 8 * (i >> 2) + 2 t + (i & 1)
of a warp's 16 rows, where g = lane / 4 and t = lane % 4. The four registers of A for 32 of K hold
rows g, g + 8, g, g + 8, columns 4 t on, twice, then 16 + 4 t on, twice. PTX ISA 8.0 and later,
"Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx.text import Text, vector

ROWS = 64
DEPTH = 32  # of K in one instruction on bytes
A_REGISTERS = 4
_UNIT = 16  # bytes: what descriptors count in
_GROUP = 8  # rows of B that are swizzled together
_SWIZZLES = {128: 1, 64: 2, 32: 3}  # width in bytes -> code


def descriptor_bits(width: int) -> int:
    """A descriptor without address, for rows of `width` bytes that are swizzled over that width."""
    if width not in _SWIZZLES:
        raise ValueError(f"width: got {width}; accepted are {', '.join(map(str, _SWIZZLES))}")
    stride = _GROUP * width // _UNIT  # from one group of rows to the next
    return _SWIZZLES[width] << 62 | stride << 32 | 1 << 16


def describe(t: Text, target: str, address: str, width: int, scratch: str) -> None:
    """target (b64): the descriptor of a tile that begins at a shared address (b32)."""
    t.op("shr.u32", scratch, address, "4")
    t.op("cvt.u64.u32", target, scratch)
    t.op("or.b64", target, target, f"0x{descriptor_bits(width):016x}")


def product(
    t: Text,
    result: Sequence[str],
    a: Sequence[str],
    b: str,
    *,
    accumulate: str,
) -> None:
    """result (+)= A B over 32 of K: result has 64 rows and 2 * len(result) columns.

    a: four registers. b: a descriptor. accumulate: a predicate; where it is false, result is
    overwritten.
    """
    columns = 2 * len(result)
    t.op(
        f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{DEPTH}.f32.e4m3.e4m3",
        vector(result),
        vector(a),
        b,
        accumulate,
        "1",
        "1",
    )


def begin(t: Text) -> None:
    """Registers written before are seen by the products that follow."""
    t.op("wgmma.fence.sync.aligned")


def commit(t: Text) -> None:
    """The products since the last commit are one group."""
    t.op("wgmma.commit_group.sync.aligned")


def wait(t: Text, groups: int) -> None:
    """Until no more than `groups` groups are under way."""
    t.op("wgmma.wait_group.sync.aligned", str(groups))
